"""A member of a stage that audits another: what it asks whom for, what it computes, what it says,
and when it waits."""

from __future__ import annotations

from typing import Any

import pytest
from pipeline_rig import LINEAGE, PATIENCE_S, Rig, payload

from gossip.core import (
    Activation,
    ActivationRefused,
    AuditFinding,
    AuditReply,
    AuditRequest,
    AuditVote,
    BackwardDone,
    CollectUpdate,
    Counted,
    Effect,
    ForwardDone,
    Payload,
    Report,
    RunBackward,
    RunForward,
    Send,
    SetTimer,
    StageDone,
    StartRound,
)
from gossip_pipelines.protocol.audits import FOLLOWED_MAX, TRIES_MAX, _hash

STAGES = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
AUDITED, THIRD = 4, 5
X, Y, G, B = (payload(name) for name in "xygb")  # to the member, from it, and back
MICRO_BATCH = 0


def messages(effects: list[Effect], kind: type) -> list[tuple[int, Any]]:
    return [(e.peer, e.message) for e in effects if isinstance(e, Send) and type(e.message) is kind]


def passes(effects: list[Effect]) -> list[RunForward | RunBackward]:
    return [e for e in effects if isinstance(e, RunForward | RunBackward)]


def reports(effects: list[Effect]) -> list[tuple[str, dict[str, Any]]]:
    return [(e.event, e.fields) for e in effects if isinstance(e, Report)]


class Auditing:
    """Peer 3 of the middle stage, which audits all that the others count."""

    def __init__(self, audit: float = 1.0, local: int = 3) -> None:
        self.rig = Rig(local, 3, stages=STAGES, audit=audit)
        self.rig.begin()
        ranking = self.rig.flow.barrier.ranking
        alike = [dict.fromkeys(members, 1.0) for members in STAGES]
        homes = [ranking(0, MICRO_BATCH, at, alike[at])[0] for at in (0, 2)]
        self.before, self.behind = homes

    def counts(
        self, peer: int = AUDITED, number: int = 1, trace: bytes | None = None, *also: int
    ) -> list[Effect]:
        traces = trace or _hash(X.digest + B.digest) + _hash(Y.digest + G.digest)
        named = (MICRO_BATCH, *also)
        told = Counted(LINEAGE, 0, 1, number, named, False, (traces,) * len(named))
        return self.rig.hear(peer, told)

    def reply(self, sender: int, given: Payload | None, came: Payload) -> list[Effect]:
        digest = b"" if given is None else given.digest
        told = AuditReply(LINEAGE, 0, 1, MICRO_BATCH, AUDITED, digest, came.digest)
        return self.rig.hear(sender, told, given)

    def replies(self, came: Payload = Y, back: Payload = B) -> list[Effect]:
        first = self.reply(self.before, X, back)
        return first + self.reply(self.behind, G, came)

    def computes(self, task: RunForward | RunBackward, result: Payload | None) -> list[Effect]:
        flow = self.rig.flow
        if isinstance(task, RunForward):
            done: ForwardDone | BackwardDone = ForwardDone(
                task.round_id, task.micro_batch, task.attempt, result, audit=True
            )
        else:
            done = BackwardDone(
                task.round_id, task.micro_batch, task.attempt, result, 0, audit=True
            )
        return flow.on_audit_done(done, self.rig.now)

    def audits(self, output: Payload = Y, back: Payload = B, **came: Payload) -> list[Effect]:
        """From the beginning to what follows from the last pass."""
        self.counts()
        (forward,) = passes(self.replies(**came))
        (backward,) = passes(self.computes(forward, output))
        return self.computes(backward, back)

    def finding(self, sender: int, checked: bool, peer: int = AUDITED, b: int = 0) -> list[Effect]:
        return self.rig.hear(sender, AuditFinding(LINEAGE, 0, 1, b, peer, checked))


def test_an_auditor_asks_the_neighbours_and_the_audited_member_hears_nothing() -> None:
    auditing = Auditing()
    effects = auditing.counts()
    asked = [(auditing.before, 0), (auditing.behind, 2)]
    assert messages(effects, AuditRequest) == [
        (peer, AuditRequest(LINEAGE, 0, stage, MICRO_BATCH, AUDITED)) for peer, stage in asked
    ]
    assert {effect.peer for effect in effects if isinstance(effect, Send)} == {
        peer for peer, _ in asked
    }
    assert messages(auditing.counts(number=2), AuditRequest) == [], "drawn once"
    (forward,) = passes(auditing.replies())
    assert (forward.payload, forward.audit) == (X, True)
    (backward,) = passes(auditing.computes(forward, Y))
    assert (type(backward), backward.payload, backward.audit) == (RunBackward, G, True)
    assert auditing.rig.auditor.is_open
    assert reports(auditing.computes(backward, B)) == []
    assert not auditing.rig.auditor.is_open
    assert auditing.rig.votes == []


@pytest.mark.parametrize("audit", [0.1, 0.5])
def test_audits_are_drawn_with_their_probability_from_bytes_of_ones_own(audit: float) -> None:
    drawn: list[set[tuple[int, int]]] = []
    for lots in (b"one", b"another", b"one"):
        rig = Rig(3, 100, stages=STAGES, audit=audit)
        rig.flow.prepare((16, 16), lots)
        asked = set()
        for at in range(20):
            rig.begin(at)
            for peer in (AUDITED, THIRD):
                told = Counted(LINEAGE, at, 1, 1, tuple(range(50)), False, (bytes(32),) * 50)
                effects = rig.hear(peer, told)
                asked |= {
                    (at, m.micro_batch) for _, m in messages(effects, AuditRequest) if m.stage == 0
                }
        drawn.append(asked)
        assert 0.75 * audit < len(asked) / 1000 < 1.25 * audit
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("audit", [0.6, 1.0])
def test_at_the_set_probability_at_least_one_other_member_audits(audit: float) -> None:
    asked = set[tuple[int, int]]()
    for auditor in (3, THIRD):
        rig = Rig(auditor, 50, stages=STAGES, audit=audit)
        rig.flow.prepare((16, 16), bytes([auditor]))
        for at in range(20):
            rig.begin(at)
            told = Counted(LINEAGE, at, 1, 1, tuple(range(50)), False, (bytes(32),) * 50)
            effects = rig.hear(AUDITED, told)
            asked |= {(at, m.micro_batch) for _, m in messages(effects, AuditRequest)}
    assert abs(len(asked) / 1000 - audit) < 0.04


@pytest.mark.parametrize("wrong", ["output", "gradient"])
def test_an_answer_that_is_wrong_is_said_to_the_third_and_waited_for(wrong: str) -> None:
    auditing = Auditing()
    computed = {"output": payload("z")} if wrong == "output" else {"back": payload("z")}
    effects = auditing.audits(**computed)
    vote = AuditVote(AUDITED, 0, MICRO_BATCH)
    assert auditing.rig.votes == [vote]
    assert reports(effects)[0][0] == "audit_differs"
    found = AuditFinding(LINEAGE, 0, 1, MICRO_BATCH, AUDITED, checked=False)
    assert messages(effects, AuditFinding) == [(THIRD, found)]
    assert auditing.rig.auditor.is_open
    auditing.finding(AUDITED, checked=True)
    assert auditing.rig.auditor.is_open, "the accused does not decide"
    auditing.finding(THIRD, checked=True)
    assert not auditing.rig.auditor.is_open


def test_a_member_that_contradicts_a_neighbour_is_no_liar_by_that_alone() -> None:
    auditing = Auditing()
    auditing.audits(came=payload("z"))  # the next stage says that it was given that
    assert auditing.rig.votes == [AuditVote(AUDITED, 0, MICRO_BATCH, None, auditing.behind)]
    auditing = Auditing()
    auditing.audits(back=payload("z"), output=Y)
    assert auditing.rig.votes == [AuditVote(AUDITED, 0, MICRO_BATCH)]
    auditing = Auditing()
    auditing.counts()
    (forward,) = passes(
        auditing.reply(auditing.before, payload("w"), B) + auditing.reply(auditing.behind, G, Y)
    )
    (backward,) = passes(auditing.computes(forward, payload("f(w)")))
    auditing.computes(backward, B)
    assert auditing.rig.votes == [AuditVote(AUDITED, 0, MICRO_BATCH, auditing.before, None)]


def test_the_update_is_kept_back_until_audits_are_over() -> None:
    auditing = Auditing()
    rig = auditing.rig
    auditing.counts(AUDITED, 1, None, 1)
    for sender, reply in ((auditing.before, (X, B)), (auditing.behind, (G, Y))):
        auditing.reply(sender, *reply)
    assert not [e for e in rig.said if isinstance(e, CollectUpdate)]
    third = rig.hear(THIRD, Counted(LINEAGE, 0, 1, 1, (2,), False, (bytes(32),)))
    assert not [e for e in third if isinstance(e, CollectUpdate)]
    view = rig.view(0, 1, 2)  # audits that wait for the stage before are given up
    assert [event for event, _ in reports(view)].count("audit_given_up") == 2
    forward = rig.auditor.busy
    assert forward is not None
    done = ForwardDone(0, MICRO_BATCH, 0, Y, audit=True)
    rig.flow.on_audit_done(done, 0.0)
    last = rig.flow.on_audit_done(BackwardDone(0, MICRO_BATCH, 0, B, 0, audit=True), 0.0)
    assert [e.micro_batches for e in last if isinstance(e, CollectUpdate)] == [()]


def test_the_third_member_computes_what_another_has_found_and_says_that_it_has() -> None:
    auditing = Auditing(audit=1e-9)
    assert messages(auditing.counts(), AuditRequest) == []
    effects = auditing.finding(THIRD, checked=False)
    assert [peer for peer, _ in messages(effects, AuditRequest)] == [
        auditing.before,
        auditing.behind,
    ]
    (forward,) = passes(auditing.replies())
    (backward,) = passes(auditing.computes(forward, payload("z")))
    effects = auditing.computes(backward, B)
    assert auditing.rig.votes == [AuditVote(AUDITED, 0, MICRO_BATCH)]
    answer = AuditFinding(LINEAGE, 0, 1, MICRO_BATCH, AUDITED, checked=True)
    assert messages(effects, AuditFinding) == [(THIRD, answer)]
    assert not auditing.rig.auditor.is_open
    again = auditing.finding(THIRD, checked=False)
    assert messages(again, AuditFinding) == [(THIRD, answer)], "it is told again, not computed"
    assert messages(again, AuditRequest) == []


def test_who_says_of_all_that_it_is_wrong_costs_the_third_member_little() -> None:
    rig = Rig(3, 9, stages=STAGES, audit=1e-9)
    rig.begin()
    rig.hear(AUDITED, Counted(LINEAGE, 0, 1, 1, tuple(range(9)), False, (bytes(32),) * 9))
    followed = 0
    for b in range(9):
        effects = rig.hear(THIRD, AuditFinding(LINEAGE, 0, 1, b, AUDITED, checked=False))
        asks, answers = messages(effects, AuditRequest), messages(effects, AuditFinding)
        followed += bool(asks)
        assert bool(asks) != any(m.checked for _, m in answers)
    assert followed == FOLLOWED_MAX
    for accused in (3, THIRD):  # the local peer itself, and the accuser
        effects = rig.hear(THIRD, AuditFinding(LINEAGE, 0, 1, 0, accused, checked=False))
        assert effects == []


def test_neighbours_tell_auditors_of_another_stage_what_went_to_and_fro() -> None:
    rig = Rig(3, 3, stages=STAGES, audit=1.0)
    (forward,) = passes([*rig.begin(), *rig.activation(0, 1)])
    sent = next(m for m in messages(rig.forward(forward), Activation))  # type: ignore[arg-type]
    target, activation = sent
    asks = AuditRequest(LINEAGE, 0, 1, 1, target)
    auditor = next(p for p in STAGES[2] if p != target)
    assert rig.hear(auditor, asks) == [], "its gradient is still to come"
    back = rig.gradient(target, 1)
    ((to, told),) = messages(back, AuditReply)
    assert (to, told.digest, told.came) == (auditor, activation.digest, payload("g1").digest)
    (backward,) = passes(back)
    rig.backward(backward)  # type: ignore[arg-type]
    other = AuditRequest(LINEAGE, 0, 1, 1, 0)
    ((to, told),) = messages(rig.hear(1, other), AuditReply)
    assert (to, told.digest, told.came) == (1, payload("b1").digest, payload("x0.1").digest)
    none = messages(rig.hear(1, AuditRequest(LINEAGE, 0, 1, 1, 2)), AuditReply)
    assert none[0][1].digest == b"", "peer 2 has not sent it"
    for sender in (4, 99):
        assert messages(rig.hear(sender, asks), AuditReply) == []
    for _ in range(2 * TRIES_MAX):
        rig.hear(auditor, asks)
    given = messages(rig.said, AuditReply)
    assert sum(to == auditor for to, _ in given) == TRIES_MAX


def test_who_does_not_answer_is_asked_again_and_then_given_up() -> None:
    auditing = Auditing()
    effects = auditing.counts()
    for tries in range(1, TRIES_MAX + 1):
        alarm = [e for e in effects if isinstance(e, SetTimer)][-1]
        assert alarm.at == pytest.approx(tries * PATIENCE_S / TRIES_MAX)
        auditing.rig.now = alarm.at
        timer = auditing.rig.timers.fire(alarm.token)
        effects = auditing.rig.flow.on_audit_timer(timer, alarm.at)  # type: ignore[arg-type]
        assert len(messages(effects, AuditRequest)) == (2 if tries < TRIES_MAX else 0)
    assert [event for event, _ in reports(effects)] == ["audit_given_up"]
    assert not auditing.rig.auditor.is_open


def test_where_one_was_no_neighbour_the_others_are_asked() -> None:
    auditing = Auditing()
    auditing.counts()
    asked = [auditing.before]
    while len(asked) < 3:
        effects = auditing.reply(asked[-1], None, payload("?"))
        again = [peer for peer, message in messages(effects, AuditRequest) if message.stage == 0]
        asked += again
    assert sorted(asked) == [0, 1, 2]
    auditing.reply(asked[0], X, B)
    assert passes(auditing.reply(auditing.behind, G, Y)) == [], "from one that is asked no more"
    effects = auditing.reply(asked[-1], None, payload("?"))
    assert "no neighbour in the stage" in reports(effects)[0][1]["reason"]
    assert auditing.rig.votes == []
    auditing = Auditing()
    auditing.counts()
    effects = auditing.reply(auditing.before, None, payload("?"))
    ((found, _),) = [each for each in messages(effects, AuditRequest) if each[1].stage == 0]
    auditing.reply(found, X, B)
    assert passes(auditing.reply(auditing.behind, G, Y))


def test_nobody_counts_without_saying_what_it_took_and_gave() -> None:
    rig = Rig(3, 3, stages=STAGES, audit=1.0)
    rig.begin()
    for traces in ((), (bytes(31),), (bytes(32), bytes(32))):
        rig.hear(AUDITED, Counted(LINEAGE, 0, 1, 1, (0,), False, traces))
        assert rig.flow.stores()["members that have counted"] == 0
    plain = Rig(3, 3, stages=STAGES)
    plain.begin()
    plain.hear(AUDITED, Counted(LINEAGE, 0, 1, 1, (0,), False, (bytes(32),)))
    assert plain.flow.stores()["members that have counted"] == 0


def done(stage: int, peer: int, *locked: int, at: int = 1) -> StageDone:
    return StageDone(LINEAGE, stage, at, at, STAGES[stage], False, locked)


def test_who_is_locked_up_gets_no_work_once_enough_of_its_stage_say_so() -> None:
    rig = Rig(3, 3, stages=STAGES, audit=0.1)
    rig.begin(1)
    barrier = rig.barrier
    assert barrier.record_report(6, 0, done(2, 6, 8))
    assert barrier.working(2) == (6, 7, 8)
    assert barrier.record_report(7, 0, done(2, 7, 8))
    assert barrier.working(2) == (6, 7)
    assert not barrier.record_report(8, 0, done(2, 8, 7, 6)), "not ascending"
    assert not barrier.record_report(8, 0, done(2, 8, 3)), "of another stage"
    (forward,) = passes(rig.activation(0, 0, round_id=1))
    sent = messages(rig.forward(forward), Activation)  # type: ignore[arg-type]
    assert {peer for peer, _ in sent} <= {6, 7}
    for peer in (0, 1):
        assert barrier.record_report(peer, 0, done(0, peer, 2))
    rig.activation(2, 1, round_id=1)
    assert 1 not in rig.flow.works, "from one that is locked up"


def test_who_is_locked_up_itself_computes_nothing() -> None:
    rig = Rig(3, 3, stages=STAGES, audit=1.0)
    rig.flow.begin(StartRound(0, None), (4, 5), 0.0)
    effects = rig.activation(0, 0)
    assert [peer for peer, _ in messages(effects, ActivationRefused)] == [0]
    assert rig.flow.works == {}
    effects = rig.hear(4, Counted(LINEAGE, 0, 1, 1, (0, 1, 2), False, (bytes(32),) * 3))
    assert messages(effects, AuditRequest) == []
    assert [e.micro_batches for e in effects if isinstance(e, CollectUpdate)] == [()]


def test_who_is_locked_up_hears_what_the_others_have_counted_and_so_can_answer() -> None:
    rig = Rig(3, 3, stages=STAGES, audit=0.1)
    rig.barrier.locked_here = (5,)
    rig.flow.begin(StartRound(0, None), {3: 1.0, 4: 1.0}, 0.0)
    first = messages(rig.compute(rig.activation(0, 0)), Counted)
    assert [peer for peer, _ in first] == [4, 5]
    rig.view(5)
    again = messages(rig.compute(rig.activation(0, 1)), Counted)
    assert [peer for peer, _ in again] == [4]
