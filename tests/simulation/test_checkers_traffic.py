"""S15: how much is said, of each kind of message: every bound with a plant that exceeds it. And
slow nodes, which say it late."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from checked_swarm import assert_sound, checked_swarm, show, tamper
from test_checkers_gossip import caught, each, watched
from test_world import reset_link

from gossip.core.events import Effect, Event, LinkUp, Received, Restore, Send, TimerFired
from gossip.core.messages import (
    Ack,
    Commit,
    CommitRequest,
    Gossip,
    Hello,
    Message,
    Nack,
    NotServing,
    Ping,
    Push,
    PushPull,
    Rumor,
    StateAttestation,
    StateOffer,
    StateRequest,
    UpdateRequest,
)
from gossip.core.peer import Peer
from gossip.faults.world import Reset
from gossip_lab.simulation.checkers import Checker, CheckerSuite, RunConditions, Violation
from gossip_lab.simulation.checkers.liveness.pushes import PushesFollowPlan
from gossip_lab.simulation.checkers.traffic.rates import BoundedMessageRates
from gossip_lab.simulation.checkers.traffic.replies import (
    BoundedUpdateRepetitions,
    OneCommitPerReason,
    OneReplyPerRequest,
)
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm

Change = Callable[[Event, list[Effect]], list[Effect] | None]


def twice(*kinds: type) -> Change:
    """Says every message of these kinds two times."""
    return each(Send, lambda send: [send, send] if isinstance(send.message, kinds) else [send])


def besides(message: Message, when: type = TimerFired) -> Change:
    """Says that to peer 1 with every event of a kind."""
    return lambda event, effects: (
        [*effects, Send(1, message)] if isinstance(event, when) else effects
    )


# --- answers and offers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checker", "kind", "words"),
    [
        (OneReplyPerRequest, Ack, r"sends peer \d a reply, Ack, that it has not requested"),
        (OneReplyPerRequest, PushPull, "a reply, PushPull, that it has not requested"),
        (
            OneCommitPerReason,
            Commit,
            r"sends peer \d the commit of round \d+, shard 0 2 times, but has had .* only 1",
        ),
    ],
)
def test_s15_what_is_said_twice_for_one_reason_is_caught(
    checker: type[Checker], kind: type, words: str
) -> None:
    swarm, _ = watched(checker, topology="rolling")
    tamper(swarm, 2, twice(kind))
    with pytest.raises(Violation, match=words) as found:
        swarm.run_for(12.0)
    assert found.value.invariant == "S15"


@pytest.mark.parametrize(
    "answer",
    [
        Nack(7, 2),
        NotServing(b"lineage!", 0, 0, 0, 9, b""),
        StateOffer(b"lineage!", 1, 0, b"", b"", 0, b"", "busy"),
        StateAttestation(b"lineage!", 1, 0, b"", b"", b"", "busy"),
        PushPull((), reply=True),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_s15_an_answer_to_nothing_is_caught(answer: Message) -> None:
    swarm, _ = watched(OneReplyPerRequest, topology="rolling")
    tamper(swarm, 0, besides(answer))
    assert f"sends peer 1 a reply, {type(answer).__name__}, that it has not requested" in caught(
        swarm
    )


def test_s15_a_server_that_repeats_a_request_without_end_is_caught() -> None:
    swarm, _ = watched(BoundedUpdateRepetitions, topology="rolling")
    tamper(swarm, 0, besides(UpdateRequest(b"lineage!", 3, 0, 1, b"")))
    assert caught(swarm) == "sends peer 1 its UpdateRequest of round 3, shard 0, attempt 1 9 times"


def test_a_push_that_is_sent_twice_is_caught() -> None:
    swarm, _ = watched(PushesFollowPlan)
    tamper(swarm, 0, twice(Push))
    assert "pushes its gradient" in caught(swarm)


# --- what a peer says by itself -------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Ping(7, 1, ()),
        Gossip((Rumor(2, "alive", 0, "", "", 2),)),
        PushPull((), reply=False),
        StateRequest(b"lineage!", 3, 0, "state"),
        CommitRequest(b"lineage!", 0, 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_s15_who_says_something_with_every_event_is_caught(message: Message) -> None:
    swarm, _ = watched(BoundedMessageRates, topology="rolling")
    tamper(swarm, 0, lambda event, effects: [*effects, *[Send(1, message)] * 3])
    assert f"times a {type(message).__name__} in a second" in caught(swarm)


@pytest.mark.parametrize("equivocating", [(), (4,)])
def test_a_state_for_each_result_that_was_told_differently_is_no_flood(
    equivocating: tuple[int, ...],
) -> None:
    """Seed 941311: a server that tells two results in each of its turns, and one of five that needs
    four states in a second."""
    checker = BoundedMessageRates(RunConditions.of(equivocating, equivocating=equivocating))
    swarm = checked_swarm(CheckerSuite([checker]), n=5, topology="rolling")
    swarm.run_for(1.0)
    asks = [Send(peer, StateRequest(b"lineage!", 3, 0, "state")) for peer in (1, 2, 3, 4)]
    recovered = [*asks, Restore(3, b"state")]

    def recover(times: int, effects: list[Effect]) -> None:
        for _ in range(times):
            for effect in effects:
                show(checker, "on_effect", swarm, 0, effect)

    with (
        pytest.raises(Violation, match=r"more than \d+ times a StateRequest in a second")
        if not equivocating
        else nullcontext()
    ):
        recover(40, recovered)
    with pytest.raises(Violation, match=r"more than \d+ times a StateRequest in a second"):
        recover(40, asks)  # and is given none


def break_again_and_again(swarm: Swarm[Peer], a: int, b: int) -> None:
    for _ in range(40):
        reset_link(swarm, a, b)
        swarm.run_for(0.02)


def test_who_greets_over_a_link_that_breaks_and_comes_up_again_and_again_is_sound() -> None:
    """Seed 603."""
    swarm, _ = watched(BoundedMessageRates, topology="rolling")
    on_hello: list[Hello] = []

    def listen(event: Event, effects: list[Effect]) -> None:
        sends = [effect for effect in effects if isinstance(effect, Send) and effect.peer == 1]
        on_hello.extend(send.message for send in sends if isinstance(send.message, Hello))

    tamper(swarm, 0, listen)
    break_again_and_again(swarm, 0, 1)
    assert len(on_hello) >= 40, "more than is granted for any other reason"


@pytest.mark.parametrize("when", [Received, LinkUp], ids=lambda when: when.__name__)
@pytest.mark.parametrize("other", [1, 2])
def test_s15_who_greets_one_over_and_over_is_caught_also_while_links_come_up(
    when: type, other: int
) -> None:
    swarm, _ = watched(BoundedMessageRates, topology="rolling")
    tamper(swarm, 0, besides(swarm.hosts[0].core.hello_exchange.hello(), when))
    with pytest.raises(Violation, match="sends more than 25 times a Hello in a second"):
        break_again_and_again(swarm, 0, other)


def test_s15_who_goes_on_with_every_probe_in_the_calm_is_caught_where_it_was_not_before() -> None:
    """Three pings where one is needed: amid crashes a peer may have reason to.
    When all has settled nobody has."""
    checker = BoundedMessageRates()
    suite = CheckerSuite([checker])
    swarm = checked_swarm(suite, n=5)
    swarm.run_for(1.0)
    tamper(
        swarm, 0, each(Send, lambda send: [send] * 3 if isinstance(send.message, Ping) else [send])
    )
    swarm.run_for(2.0)
    suite.settle(swarm)
    with pytest.raises(
        Violation, match=r"sends more than 13 times a Ping when all has settled; 6 are needed"
    ):
        swarm.run_for(4.0)


def test_a_sound_swarm_says_in_the_calm_what_it_must_and_one_that_a_liar_accuses_may_say_more():
    for conditions in (RunConditions(), RunConditions.of((3,), attacks=("false_suspicions",))):
        checker = BoundedMessageRates(conditions)
        suite = CheckerSuite([checker])
        swarm = checked_swarm(suite, n=5)
        if conditions.attacks:
            tamper(swarm, 0, lambda event, effects: [*effects, *[Send(1, Gossip(()))] * 3])
        swarm.run_for(3.0)
        before = checker.judged
        suite.settle(swarm)
        if conditions.attacks:
            with pytest.raises(Violation, match="Gossip when all has settled"):
                swarm.run_for(3.0)
        else:
            swarm.run_for(3.0)
            assert checker.judged > before


# --- what it has found ----------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_seed_2088_connections_that_break_often_cause_no_flood_of_questions(topology: str) -> None:
    """Each closing had three others asked, whose pings and answers broke the next connections,
    which are up in a millisecond."""
    schedule = Schedule(
        1, peers=5, topology=topology, faults=(Reset(0.1, 2.0, 3.0),), active_s=5.0, duration_s=5.0
    )
    outcome = assert_sound(replace(schedule, probe_interval_s=1.0))
    assert outcome.counts["reset"] > 30
