"""The last round of a training: there is no next one whose messages would tell that a server has lied in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from effort import effort
from test_ending import ROUNDS, everybody_finished, run_to, swarm_that_ends, toy

from gossip.core.events import Halt, Payload
from gossip.core.messages import Commit, Envelope, Hello, PeerId
from gossip.core.peer import Peer
from gossip.lying import Letter
from gossip.sim.checkers import Violation
from gossip.sim.checkers.concluding import EndsAlike
from gossip.sim.driver import Swarm
from gossip.sim.play import run
from gossip.sim.schedule import Schedule
from gossip.sim.toy_trainer import payload_of

LIMIT_S = 60.0
DRAIN_S = 5.0
VICTIMS = [(4, 1, (1,)), (5, 1, (2,)), (5, 1, (0, 3)), (8, 2, (1, 6)), (8, 2, (0, 2, 4, 6))]


class LiesAtLast:
    """Whoever serves the last round gives ``victims`` a result that is a little longer: nobody can tell it from a true one.

    ``beside``: what else the liar does to a letter of its own, once it has lied; None: nothing.
    """

    def __init__(self, victims: Collection[PeerId], beside: Callable[[PeerId, Envelope], Envelope | None] | None = None) -> None:
        self.victims, self.beside, self.told, self.liar = victims, beside, 0, -1

    def __call__(self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None) -> Iterable[Letter]:
        commit = envelope.message
        if isinstance(commit, Commit) and commit.round_id == ROUNDS - 1 and commit.server == sender and payload is not None:
            self.liar = sender
            if to in self.victims:
                self.told += 1
                lie = payload_of((payload.data * np.float32(1.01)).astype(np.float32), digest=True)
                return [(to, replace(envelope, message=replace(commit, digest=lie.digest)), lie)]
        elif sender == self.liar and self.beside is not None:
            said = self.beside(to, envelope)
            return [] if said is None else [(to, said, payload)]
        return [(to, envelope, payload)]


def keeps_silent(to: PeerId, envelope: Envelope) -> Envelope | None:
    return None


def says_nothing_of_its_state(to: PeerId, envelope: Envelope) -> Envelope | None:
    return None if isinstance(envelope.message, Hello) else envelope


def says_another_hash_to_each(to: PeerId, envelope: Envelope) -> Envelope:
    said = envelope.message
    return replace(envelope, message=replace(said, chain=bytes([to]) * 16)) if isinstance(said, Hello) else envelope


def all_confirmed(swarm: Swarm[Peer], *but: PeerId) -> bool:
    return all(toy(swarm, peer).confirmed is not None for peer in swarm.hosts if peer not in but)


def replicas(swarm: Swarm[Peer], *but: PeerId) -> set[bytes]:
    return {toy(swarm, peer).digest for peer in swarm.hosts if peer not in but}


def agreed(swarm: Swarm[Peer], *but: PeerId) -> set[bool | None]:
    said = [toy(swarm, peer).confirmed for peer in swarm.hosts if peer not in but]
    return {each.agreed if each is not None else None for each in said}


def over(swarm: Swarm[Peer]) -> bool:
    return all(host.halt is not None for host in swarm.hosts.values())


@pytest.mark.parametrize(
    ("n", "f", "victims"), [(4, 1, (1,)), (5, 1, (2,)), (5, 1, (0, 3)), (8, 2, (1, 6)), (8, 2, (0, 2, 4, 6))]
)
@pytest.mark.parametrize("quorum", ["majority", "available"])
@pytest.mark.parametrize("seed", effort((1,), tuple(range(10))))
def test_who_was_given_another_result_of_the_last_round_ends_with_everybodys_bits(
    n: int, f: int, victims: tuple[PeerId, ...], quorum: str, seed: int
) -> None:
    swarm = swarm_that_ends(seed, n=n, f=f, quorum=quorum)
    swarm.outgoing = lies = LiesAtLast(victims)
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    assert lies.told
    everybody_finished(swarm)
    assert len(replicas(swarm)) == 1
    assert agreed(swarm) == {True}
    assert swarm.now < 4.0


@pytest.mark.parametrize("beside", [keeps_silent, says_nothing_of_its_state, says_another_hash_to_each])
@pytest.mark.parametrize("seed", effort((2,), tuple(range(10))))
def test_what_the_liar_does_then_keeps_nobody_longer_than_a_drain(beside: Callable[..., Envelope | None], seed: int) -> None:
    swarm = swarm_that_ends(seed, n=5, f=1)
    swarm.outgoing = lies = LiesAtLast((0, 1, 2, 3, 4)[seed % 5 :][:1], beside)
    run_to(swarm, ROUNDS)
    ended_at = swarm.now
    swarm.run_until(lambda: all_confirmed(swarm, lies.liar), limit_s=LIMIT_S)
    assert len(replicas(swarm, lies.liar)) == 1
    assert agreed(swarm, lies.liar) == {True}
    assert swarm.now < ended_at + DRAIN_S + 0.5


@pytest.mark.parametrize("f", [0, 1])
@pytest.mark.parametrize("quorum", ["majority", "available"])
def test_without_a_lie_the_end_takes_no_time(f: int, quorum: str) -> None:
    swarm = swarm_that_ends(3, n=5, f=f, quorum=quorum)
    run_to(swarm, ROUNDS)
    ended_at = swarm.now
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    everybody_finished(swarm)
    assert agreed(swarm) == {True}
    assert swarm.now < ended_at + 0.1


def test_two_of_whom_one_lies_cannot_tell_which_and_say_so() -> None:
    swarm = swarm_that_ends(4, n=3, f=1, linger_s=1.0)
    run_to(swarm, ROUNDS - 20)
    swarm.crash(2)
    swarm.outgoing = lies = LiesAtLast((0, 1), says_another_hash_to_each)
    swarm.run_until(lambda: all(swarm.hosts[peer].halt is not None for peer in (0, 1)), limit_s=LIMIT_S)
    honest = 1 - lies.liar
    assert swarm.hosts[honest].halt == Halt("finished", 0)
    assert agreed(swarm, lies.liar, 2) == {False}
    assert swarm.reports(honest, "unconfirmed_end")


def test_who_is_asked_to_stop_meanwhile_does() -> None:
    swarm = swarm_that_ends(5, n=5, f=1)
    swarm.outgoing = LiesAtLast((2,), says_another_hash_to_each)
    run_to(swarm, ROUNDS)
    swarm.run_for(0.1)
    waiting = [peer for peer in swarm.hosts if toy(swarm, peer).confirmed is None]
    assert waiting
    asked_at = swarm.now
    for peer in waiting:
        swarm.stop(peer)
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    assert swarm.now < asked_at + DRAIN_S + 0.5


# --- the checker ----------------------------------------------------------------------------------------------------------


def lied_to_at_last(**core: Any) -> tuple[Swarm[Peer], EndsAlike]:
    """A swarm at its end, whose cores' ``confirming`` has ``core`` in place of its own."""
    swarm, checker = swarm_that_ends(1, n=5, f=1), EndsAlike()
    swarm.hooks.append(checker)
    swarm.outgoing = LiesAtLast((2,))
    run_to(swarm, ROUNDS - 10)
    for host in swarm.hosts.values():
        for name, planted in core.items():
            setattr(host.core.confirming, name, partial(planted, host.core.confirming))
    return swarm, checker


def test_a_sound_end_is_judged_and_nobody_waits_in_vain() -> None:
    swarm, checker = lied_to_at_last()
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    checker.judge_end(swarm)
    assert checker.judged >= 10


def test_who_takes_its_own_state_for_everybodys_is_caught() -> None:
    swarm, _ = lied_to_at_last(look=lambda confirming, now: confirming._confirm(True))
    with pytest.raises(Violation, match=r"S9 .* it ends before round 60 with \w+, peer \d with \w+"):
        swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)


def test_who_cannot_say_though_all_are_there_is_caught() -> None:
    swarm, _ = lied_to_at_last(look=lambda confirming, now: confirming._give_up(1, {}, []))
    with pytest.raises(Violation, match="its last state may be another than that of 4 others"):
        swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)


def test_who_is_never_answered_is_caught() -> None:
    swarm, checker = lied_to_at_last(look=lambda confirming, now: [])
    swarm.run_for(20.0)
    with pytest.raises(Violation, match="whether its last state is everybody's, in vain"):
        checker.judge_end(swarm)


def test_schedules_end_with_a_lie_in_the_last_round() -> None:
    schedule = Schedule(8, peers=5, active_s=1.0, duration_s=1.0, compute_s=(0.02, 0.04), aggregator="median")
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation
    assert outcome.counts["lied_to_at_last"]
    assert outcome.judged_by["EndsAlike"] >= 10
