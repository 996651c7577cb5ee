"""Micro-batches on their way through one member of a stage: credits, attempts, losses, doubles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pipeline_rig import LINEAGE, PATIENCE_S, STAGES, Rig, payload

from gossip.core import (
    Activation,
    ActivationGradient,
    ActivationRefused,
    BackwardDone,
    CollectUpdate,
    Counted,
    DropForward,
    Effect,
    ForwardDone,
    MicroBatchesMissing,
    ResetSum,
    RunBackward,
    RunForward,
    Send,
    SetTimer,
    Withdraw,
)


def of(kind: type, effects: list[Effect]) -> list[Send]:
    return [e for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def tasks(effects: list[Effect]) -> list[RunForward | RunBackward]:
    return [e for e in effects if isinstance(e, RunForward | RunBackward)]


def collected(effects: list[Effect]) -> list[tuple[int, ...]]:
    return [e.micro_batches for e in effects if isinstance(e, CollectUpdate)]


def homes(rig: Rig, stage: int) -> list[int]:
    alike = dict.fromkeys(STAGES[stage], 1.0)
    return [rig.flow.barrier.ranking(0, b, stage, alike)[0] for b in range(4)]


def own(rig: Rig) -> list[int]:
    return [b for b, home in enumerate(homes(rig, rig.stage)) if home == rig.local]


def others(rig: Rig) -> list[int]:
    return [b for b, home in enumerate(homes(rig, rig.stage)) if home != rig.local]


def test_no_more_forward_passes_are_owed_than_there_are_credits() -> None:
    rig = Rig(0, micro_batches=8, in_flight=2)
    first = tasks(rig.begin())
    second = tasks(rig.forward(first[0]))  # type: ignore[arg-type]
    assert [type(task) for task in (*first, *second)] == [RunForward, RunForward]
    effects = rig.forward(second[0])  # type: ignore[arg-type]
    assert tasks(effects) == []
    sent = of(Activation, effects)[0]
    came = tasks(rig.gradient(sent.peer, sent.message.micro_batch))  # type: ignore[union-attr]
    assert [type(task) for task in came] == [RunBackward]
    assert [type(task) for task in tasks(rig.backward(came[0]))] == [RunForward]  # type: ignore[arg-type]


def sent_first(rig: Rig) -> tuple[Send, SetTimer]:
    effects = rig.forward(tasks(rig.begin())[0])  # type: ignore[arg-type]
    timer = next(e for e in effects if isinstance(e, SetTimer))
    return of(Activation, effects)[0], timer


def attempts(effects: list[Effect], kind: type) -> list[tuple[int, int]]:
    return [(s.peer, s.message.attempt) for s in of(kind, effects)]  # type: ignore[union-attr]


def alarm(effects: list[Effect]) -> SetTimer:
    return next(e for e in effects if isinstance(e, SetTimer))


def test_a_gradient_that_takes_far_longer_than_usual_costs_the_receiver_its_turn() -> None:
    rig = Rig(0)
    first, _ = sent_first(rig)
    rig.now = 2.0
    rig.gradient(first.peer, first.message.micro_batch)  # type: ignore[union-attr]
    begun = rig.begin(1)
    assert tasks(begun) == []  # the trainer is at a backward pass of the round before
    effects = rig.backward(RunBackward(0, first.message.micro_batch, 0, None))  # type: ignore[union-attr]
    effects = rig.forward(tasks(effects)[0])  # type: ignore[arg-type]
    sent, timer = of(Activation, effects)[0], alarm(effects)
    assert timer.at == rig.now + 3 * 2.0
    effects = rig.fire(timer)
    assert attempts(effects, Activation) == [(5 - sent.peer, 1)]
    assert attempts(effects, Withdraw) == [(sent.peer, 1)]
    micro_batch = sent.message.micro_batch  # type: ignore[union-attr]
    works = rig.flow.works
    for sender, attempt in ((sent.peer, 0), (5 - sent.peer, 0), (sent.peer, 1)):
        back = payload("g")
        late = ActivationGradient(LINEAGE, 1, 0, micro_batch, attempt, back.digest)
        rig.hear(sender, late, back)
        assert works[micro_batch].gradient is None
    right = ActivationGradient(LINEAGE, 1, 0, micro_batch, 1, back.digest)
    rig.hear(5 - sent.peer, right, back)
    assert works[micro_batch].gradient is back


def test_before_it_is_known_how_long_one_takes_the_receiver_is_asked_again() -> None:
    rig = Rig(0)
    sent, timer = sent_first(rig)
    assert timer.at == PATIENCE_S
    for attempt, wait_s in ((1, 2 * PATIENCE_S), (2, 4 * PATIENCE_S), (3, 8 * PATIENCE_S)):
        effects = rig.fire(timer)
        assert attempts(effects, Activation) == [(sent.peer, attempt)]
        assert of(Withdraw, effects) == []
        timer = alarm(effects)
        assert timer.at == rig.now + wait_s
    assert attempts(rig.fire(timer), Activation) == [(5 - sent.peer, 4)]


def test_a_receiver_that_becomes_known_later_is_given_it_again() -> None:
    rig = Rig(0)
    sent, _ = sent_first(rig)
    message = sent.message
    assert isinstance(message, Activation)
    assert of(Activation, rig.flow.on_joined(5 - sent.peer, rig.now)) == []
    (again,) = of(Activation, rig.flow.on_joined(sent.peer, rig.now))
    assert again.peer == sent.peer
    assert isinstance(again.message, Activation)
    assert again.message.attempt == message.attempt + 1
    rig.gradient(sent.peer, message.micro_batch, message.attempt + 1)
    assert of(Activation, rig.flow.on_joined(sent.peer, rig.now)) == [], "it has answered"


def test_a_receiver_that_is_only_just_coming_back_is_asked_last() -> None:
    alone = Rig(0)
    target = sent_first(alone)[0].peer
    rig = Rig(0)
    rig.members.lives[target] = 1
    assert rig.barrier.is_returning(target)
    assert sent_first(rig)[0].peer == 5 - target
    assert rig.barrier.note_begun(target, 1)
    assert not rig.barrier.is_returning(target)
    assert not rig.barrier.note_begun(target, 0), "words of its former life"
    assert rig.barrier.has_begun(target)


def held() -> tuple[Rig, int, int, SetTimer]:
    """A member that has an output, and nobody of the next stage has begun: the micro-batch, who is
    the first to compute it there, and when it is tried again."""
    rig = Rig(0, begun=False)
    task = tasks(rig.begin())[0]
    effects = rig.forward(task)  # type: ignore[arg-type]
    assert of(Activation, effects) == []
    return rig, task.micro_batch, homes(rig, 1)[task.micro_batch], alarm(effects)


def test_who_asks_for_micro_batches_has_begun_whatever_round_it_is_in() -> None:
    for round_id in (0, 1):
        rig, micro_batch, home, _ = held()
        asks = MicroBatchesMissing(LINEAGE, round_id, 0, (micro_batch,))
        assert [s.peer for s in of(Activation, rig.hear(home, asks))] == [home]


def test_the_first_in_order_is_waited_for_a_moment_when_another_begins() -> None:
    rig, _, home, timer = held()
    rig.fire(timer)
    effects = rig.begins(5 - home)
    assert of(Activation, effects) == []
    assert [s.peer for s in of(Activation, rig.fire(alarm(effects)))] == [5 - home]


def test_a_member_that_was_started_again_is_sent_nothing_before_it_has_begun_anew() -> None:
    rig = Rig(0, stages=((0,), (1,)))
    sent, _ = sent_first(rig)
    rig.view(1)
    rig.members.lives[1] = 1
    assert of(Activation, rig.view()) == []
    assert [s.peer for s in of(Activation, rig.begins(1, life=1))] == [sent.peer]


def test_gradients_are_given_again_to_a_sender_that_was_out_of_reach() -> None:
    rig = Rig(4)
    rig.begin()
    for sender, micro_batch in ((2, 0), (3, 1), (2, 2)):
        rig.compute(rig.activation(sender, micro_batch))
    assert of(ActivationGradient, rig.view(2, 3)) == []
    again = of(ActivationGradient, rig.view(3))
    assert [(s.peer, s.message.micro_batch) for s in again] == [(2, 0), (2, 2)]  # type: ignore[union-attr]
    assert [s.peer for s in of(ActivationGradient, rig.view())] == [3]
    assert of(ActivationGradient, rig.view()) == []


def test_a_refusal_sends_it_to_the_next_or_again_under_a_higher_attempt() -> None:
    rig = Rig(0)
    sent, _ = sent_first(rig)
    micro_batch = sent.message.micro_batch  # type: ignore[union-attr]
    refused = ActivationRefused(LINEAGE, 0, 0, micro_batch, 0, known=3)
    higher = of(Activation, rig.hear(sent.peer, refused))
    assert [(s.peer, s.message.attempt) for s in higher] == [(sent.peer, 3)]  # type: ignore[union-attr]
    cannot = ActivationRefused(LINEAGE, 0, 0, micro_batch, 3, known=0)
    elsewhere = of(Activation, rig.hear(sent.peer, cannot))
    assert [(s.peer, s.message.attempt) for s in elsewhere] == [(5 - sent.peer, 4)]  # type: ignore[union-attr]


def test_lower_attempts_are_refused_and_a_withdrawn_micro_batch_is_dropped() -> None:
    rig = Rig(2)
    rig.begin()
    rig.activation(0, 1, attempt=2)
    refused = of(ActivationRefused, rig.activation(1, 1, attempt=1))
    assert [(s.peer, s.message.known) for s in refused] == [(1, 2)]  # type: ignore[union-attr]
    effects = rig.hear(0, Withdraw(LINEAGE, 0, 1, 1, 3))
    assert any(isinstance(e, DropForward) for e in effects)
    assert 1 not in rig.flow.works
    assert of(ActivationRefused, rig.activation(0, 1, attempt=2))


def test_of_two_who_wait_for_the_same_the_other_is_asked_for_its_input_when_one_withdraws() -> None:
    rig = Rig(2, in_flight=1)
    rig.begin()
    rig.activation(1, 0)  # the trainer is at it
    rig.activation(0, 3)
    rig.activation(1, 3)
    effects = rig.hear(1, Withdraw(LINEAGE, 0, 1, 3, 1))
    (refused,) = of(ActivationRefused, effects)
    assert isinstance(refused.message, ActivationRefused)
    assert (refused.peer, refused.message.attempt, refused.message.known) == (0, 0, 1)
    assert 3 not in rig.flow.works
    rig.activation(0, 3, attempt=1)
    rig.activation(1, 2)
    rig.activation(0, 2)
    assert rig.hear(1, Withdraw(LINEAGE, 0, 1, 2, 1)) == [], "it has the input of the other"
    assert rig.flow.works.keys() == {0, 2, 3}


def test_whoever_asks_again_for_what_was_computed_gets_the_gradient_that_was_kept() -> None:
    rig = Rig(4)
    rig.begin()
    rig.compute(rig.activation(2, 0))
    again = rig.activation(3, 0, attempt=1)
    assert [(s.peer, s.message.attempt) for s in of(ActivationGradient, again)] == [(3, 1)]  # type: ignore[union-attr]
    assert tasks(again) == []


def test_what_a_lost_member_of_the_first_stage_had_is_computed_again_and_handed_over() -> None:
    rig = Rig(0)
    rig.mate_counts(1, 1)
    rig.compute(rig.begin())
    rig.mate_counts(1, 2, *others(rig))
    assert collected(rig.said) == [tuple(own(rig))]
    effects = rig.compute(rig.view(1))
    assert collected(effects) == [(0, 1, 2, 3)]


def test_what_a_lost_member_of_a_later_stage_had_is_asked_for_again() -> None:
    rig = Rig(2)
    rig.begin()
    for micro_batch in own(rig):
        rig.compute(rig.activation(0, micro_batch))
    rig.mate_counts(3, 1, *others(rig))
    asked = of(MicroBatchesMissing, rig.view(3))
    assert {s.peer for s in asked} == {0, 1}
    assert {s.message.micro_batches for s in asked} == {tuple(others(rig))}  # type: ignore[union-attr]


def test_outputs_are_given_again_once_they_were_computed_on_and_not_before() -> None:
    rig = Rig(0)
    sent, _ = sent_first(rig)
    micro_batch = sent.message.micro_batch  # type: ignore[union-attr]
    missing = MicroBatchesMissing(LINEAGE, 0, 0, (micro_batch,))
    assert of(Activation, rig.hear(5 - sent.peer, missing)) == []
    rig.gradient(sent.peer, micro_batch)
    again = of(Activation, rig.hear(5 - sent.peer, missing))
    assert [(s.peer, s.message.attempt) for s in again] == [(5 - sent.peer, 1)]  # type: ignore[union-attr]
    assert of(Activation, rig.hear(5 - sent.peer, missing)) == []  # it is on its way


def test_an_output_that_may_be_lost_with_a_link_is_given_again_at_once() -> None:
    rig = Rig(0)
    sent, _ = sent_first(rig)
    micro_batch = sent.message.micro_batch  # type: ignore[union-attr]
    rig.gradient(sent.peer, micro_batch)
    other = 5 - sent.peer
    missing = MicroBatchesMissing(LINEAGE, 0, 0, (micro_batch,))
    rig.members.skipped = {other}
    assert attempts(rig.hear(other, missing), Activation) == [(other, 1)], "it was not there yet"
    rig.view()
    assert attempts(rig.hear(other, missing), Activation) == [(other, 2)]
    assert of(Activation, rig.hear(other, missing)) == []
    rig.view(other)
    rig.view()
    assert attempts(rig.hear(other, missing), Activation) == [(other, 3)]


def test_of_two_who_have_counted_the_same_the_later_in_order_begins_its_sum_anew() -> None:
    rig = Rig(2)
    rig.begin()
    for micro_batch in range(4):
        rig.compute(rig.activation(0, micro_batch))
    assert rig.flow.counted == (0, 1, 2, 3)
    effects = rig.mate_counts(3, 1, 0, 1, 2, 3)
    assert any(isinstance(e, ResetSum) for e in effects)
    effects = rig.compute(effects)
    assert rig.flow.counted == tuple(own(rig))
    assert collected(effects) == [tuple(own(rig))]
    effects = rig.compute(rig.view(3))  # computed again from what was kept
    assert collected(effects) == [(0, 1, 2, 3)]


def test_what_another_has_counted_meanwhile_is_left_to_it() -> None:
    rig = Rig(0)
    begun = rig.begin()
    rig.view(1)  # its link breaks: what was its own is taken over
    taken = [rig.forward(task) for task in passes_of(rig, begun, 4)]
    assert {s.message.micro_batch for e in taken for s in of(Activation, e)} == {0, 1, 2, 3}  # type: ignore[union-attr]
    rig.view()
    effects = rig.mate_counts(1, 1, *others(rig))
    withdrawn = {s.message.micro_batch for s in of(Withdraw, effects)}  # type: ignore[union-attr]
    dropped = {e.micro_batch for e in effects if isinstance(e, DropForward)}
    assert withdrawn == dropped == set(others(rig)) == {0, 1, 2, 3} - set(own(rig))
    for each in [send for effects in taken for send in of(Activation, effects)]:
        rig.compute(rig.gradient(each.peer, each.message.micro_batch))  # type: ignore[union-attr]
    assert not any(isinstance(effect, ResetSum) for effect in rig.said)
    assert collected(rig.said) == [tuple(own(rig))]


def passes_of(rig: Rig, begun: list[Effect], most: int) -> Iterator[RunForward]:
    """The forward passes that follow one another, each once the one before is done."""
    effects = begun
    for _ in range(most):
        (task,) = tasks(effects)
        assert isinstance(task, RunForward)
        before = len(rig.said)
        yield task
        effects = rig.said[before:]


def test_what_was_to_be_counted_again_is_left_to_another_till_it_is_lost() -> None:
    rig = Rig(2)
    rig.begin()
    for micro_batch in range(4):
        rig.compute(rig.activation(0, micro_batch))
    first, second = others(rig)
    rig.mate_counts(3, 1, first)  # the sum begins anew, with what is left
    rig.mate_counts(3, 2, first, second)
    rig.compute([e for e in rig.said if isinstance(e, RunForward)][-1:])
    assert sum(isinstance(effect, ResetSum) for effect in rig.said) == 1
    assert rig.flow.counted == tuple(own(rig))
    assert collected(rig.compute(rig.view(3))) == [(0, 1, 2, 3)]


def test_an_activation_of_a_former_life_is_not_computed_on() -> None:
    rig = Rig(2, in_flight=1)
    rig.begin()
    first = tasks(rig.activation(0, 0))
    rig.activation(1, 1)
    rig.members.lives[1] = 1
    came = rig.forward(first[0])  # type: ignore[arg-type]
    assert tasks(came) == []
    came = tasks(rig.gradient(of(Activation, came)[0].peer, 0))
    assert tasks(rig.backward(came[0])) == []  # type: ignore[arg-type]
    assert 1 not in rig.flow.works
    assert [t.micro_batch for t in tasks(rig.activation(1, 1, life=1))] == [1]


def test_what_comes_early_is_kept_for_the_next_round_and_no_longer() -> None:
    rig = Rig(2)
    rig.begin()
    assert rig.activation(0, 0, round_id=1) == []
    assert of(ActivationRefused, rig.activation(0, 0, round_id=2))
    assert [task.micro_batch for task in tasks(rig.begin(1))] == [0]
    assert rig.activation(0, 1, round_id=0) == []  # over


def test_a_payload_that_is_not_what_its_message_says_is_ignored() -> None:
    rig = Rig(2)
    rig.begin()
    message = Activation(LINEAGE, 0, 1, 0, 0, b"?" * 16)
    assert rig.hear(0, message, payload("x")) == rig.hear(0, message, None) == []
    assert rig.flow.works == {}


@pytest.mark.parametrize("sender", [1, 2, 4])
def test_nobody_but_the_stage_before_sends_activations(sender: int) -> None:
    rig = Rig(3 if sender == 2 else 0 if sender == 1 else 2)
    rig.begin()
    before = dict(rig.flow.works)
    rig.activation(sender, 3)
    assert rig.flow.works.keys() == before.keys()
    message = Activation(LINEAGE, 0, rig.stage, 0, 0, b"")
    assert rig.flow.payload_bytes(sender, message) == -1


def test_words_out_of_bounds_are_ignored() -> None:
    rig = Rig(2)
    rig.begin()
    for message in (
        Activation(LINEAGE, 0, 1, 99, 0, payload("x0.99").digest),
        Activation(LINEAGE, 0, 1, 0, 2**40, payload("x").digest),
        Activation(b"other", 0, 1, 0, 0, payload("x").digest),
        Withdraw(LINEAGE, 0, 1, 0, 2**40),
        Counted(LINEAGE, 0, 1, 1, (2, 1), False),
        Counted(LINEAGE, 0, 1, 1, (0, 77), False),
        MicroBatchesMissing(LINEAGE, 0, 1, (5,)),
    ):
        assert rig.hear(0, message, payload("x")) == []
        assert rig.hear(3, message, payload("x")) == []
    assert max(rig.flow.stores().values()) == 0


def test_what_the_trainer_could_not_compute_is_not_counted_and_asked_for_again() -> None:
    rig = Rig(2)
    rig.begin()
    first = own(rig)[0]
    task = tasks(rig.activation(0, first))[0]
    rig.flow.on_forward_done(ForwardDone(0, first, 0, None), rig.now)
    assert first not in rig.flow.works
    task = tasks(rig.activation(0, first))[0]
    effects = rig.forward(task)  # type: ignore[arg-type]
    sent = of(Activation, effects)[0]
    rig.gradient(sent.peer, first)
    effects = rig.flow.on_backward_done(BackwardDone(0, first, 0, None, 0))
    assert (rig.flow.counted, of(ActivationGradient, effects)) == ((), [])
    beat = next(e for e in rig.said if isinstance(e, SetTimer))
    missing = of(MicroBatchesMissing, rig.fire(beat))
    assert first in missing[0].message.micro_batches  # type: ignore[union-attr]


def test_nothing_of_a_round_that_is_over_is_computed_before_the_next_one_begins() -> None:
    rig = Rig(0)
    first, _ = sent_first(rig)
    sent = [first, *of(Activation, rig.forward(tasks(rig.said)[-1]))]  # type: ignore[arg-type]
    rig.is_over = True
    assert tasks(rig.gradient(first.peer, first.message.micro_batch)) == []  # type: ignore[union-attr]
    assert len(sent) == 2
    assert rig.view(1) == [], "what was another's"
    rig.is_over = False
    assert {task.round_id for task in tasks(rig.begin(1))} == {1}


def test_timers_of_a_former_round_do_nothing() -> None:
    rig = Rig(0)
    _, timer = sent_first(rig)
    what = rig.timers.fire(timer.token)
    rig.begin(1)
    assert rig.flow.on_timer(what, 9.0) == []  # type: ignore[arg-type]
