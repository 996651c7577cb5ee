"""The last round of a training: there is no next one whose messages would tell that a
server has lied in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from effort import effort
from test_ending import LINGER_S, ROUNDS, everybody_finished, run_to, swarm_that_ends, toy

from gossip.core.events import (
    ConfirmState,
    Halt,
    Payload,
    Received,
    ResultSimilarity,
    StateConfirmed,
)
from gossip.core.ledger import pack_json
from gossip.core.messages import (
    Commit,
    Contribution,
    Envelope,
    Hello,
    PeerId,
    StateAttestation,
    StateOffer,
    StateRequest,
)
from gossip.core.peer import Peer
from gossip.core.transfer.donor import attested_digest, parts_of
from gossip.faults.kinds import Restart
from gossip.faults.world import NodeAttack
from gossip.inject.byzantine import OutMessage
from gossip_lab.simulation.campaign.endings import FinalRoundAttack
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.checkers import Violation
from gossip_lab.simulation.checkers.safety.end_of_training import IdenticalFinalStates
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.toy_payloads import packed_of, payload_of

LIMIT_S = 60.0
DRAIN_S = 5.0
QUORUMS = ("majority", "available")
VICTIMS = [(4, 1, (1,)), (5, 1, (2,)), (5, 1, (0, 3)), (8, 2, (1, 6)), (8, 2, (0, 2, 4, 6))]


def keeps_silent(to: PeerId, envelope: Envelope) -> Envelope | None:
    return None


def says_nothing_of_its_state(to: PeerId, envelope: Envelope) -> Envelope | None:
    return None if isinstance(envelope.message, Hello) else envelope


def says_another_hash_to_each(to: PeerId, envelope: Envelope) -> Envelope:
    said = envelope.message
    return (
        replace(envelope, message=replace(said, chain=bytes([to]) * 16))
        if isinstance(said, Hello)
        else envelope
    )


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
    ("n", "f", "victims", "quorum"),
    effort(
        [(*each, quorum) for each, quorum in zip(VICTIMS, itertools.cycle(QUORUMS))],
        [(*each, quorum) for each in VICTIMS for quorum in QUORUMS],
    ),
)
@pytest.mark.parametrize("seed", effort((1,), tuple(range(10))))
def test_who_was_given_another_result_of_the_last_round_ends_with_everybodys_bits(
    n: int, f: int, victims: tuple[PeerId, ...], quorum: str, seed: int
) -> None:
    swarm = swarm_that_ends(seed, n=n, f=f, quorum=quorum)
    swarm.outgoing = lies = FinalRoundAttack(ROUNDS - 1, victims)
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    assert lies.told
    everybody_finished(swarm)
    assert len(replicas(swarm)) == 1
    assert agreed(swarm) == {True}
    assert swarm.now < 4.0


class AttackOnBranch:
    """Beside its lie the server tells each half that it holds what the other does, and vouches for
    a state of its own making, which it gives out."""

    MADE = 666.0

    def __init__(self, swarm: Swarm[Peer], victims: Collection[PeerId]) -> None:
        self.swarm, self._lies = swarm, FinalRoundAttack(ROUNDS - 1, victims, beside=self._beside)

    @property
    def attacker(self) -> PeerId:
        return self._lies.attacker

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        message = envelope.message
        if to == self.attacker != sender and isinstance(message, StateRequest):
            self.swarm.at(self.swarm.now + 0.002, partial(self._answer, sender, message))
            return []
        if sender == self.attacker and isinstance(message, StateOffer | StateAttestation):
            return []
        return self._lies(sender, to, envelope, payload)

    def _beside(self, to: PeerId, envelope: Envelope) -> Envelope:
        said = envelope.message
        if not isinstance(said, Hello) or said.round_id != ROUNDS:
            return envelope
        ended = [
            host.core.rounds for peer, host in self.swarm.hosts.items() if peer != self.attacker
        ]
        there = {rounds.chain for rounds in ended if rounds.round_id == ROUNDS} - {
            self.swarm.hosts[to].core.rounds.chain
        }
        return replace(envelope, message=replace(said, chain=min(there, default=said.chain)))

    def _answer(self, to: PeerId, ask: StateRequest) -> None:
        kept = self.swarm.hosts[self.attacker].core.rounds.snapshot(ROUNDS)
        made = [
            np.full(len(toy(self.swarm, to).parameters), self.MADE, np.float32).tobytes(),
            bytes(4),
            bytes(4),
        ]
        state, core = packed_of(made, toy(self.swarm, to).piece_bytes), pack_json(kept[1])
        first, settings = parts_of(state)
        if ask.what == "attestation":
            digest = attested_digest(b"lineage!", ROUNDS, kept[0], core, first)
            attestation = StateAttestation(
                b"lineage!", ask.nonce, ROUNDS, kept[0], digest, settings, ""
            )
            self.swarm.inject(to, Received(self.attacker, 0, attestation, None))
        else:
            sizes = tuple(len(part) for part in made)
            offer = StateOffer(
                b"lineage!", ask.nonce, ROUNDS, kept[0], state.digest, state.nbytes, core, "", sizes
            )
            self.swarm.inject(to, Received(self.attacker, 0, offer, state))


@pytest.mark.parametrize("seed", effort((3, 5), tuple(range(12))))
def test_a_liar_that_names_the_other_half_gets_nobody_to_hold_its_own(seed: int) -> None:
    """All honest peers left for each other's state at once and said that they had none to give; so
    the liar was all who had."""
    swarm = swarm_that_ends(seed, n=5, f=1)
    swarm.outgoing = lies = AttackOnBranch(swarm, (0, 3))
    swarm.run_until(
        lambda: lies.attacker >= 0 and all_confirmed(swarm, lies.attacker), limit_s=LIMIT_S
    )
    honest = [peer for peer in swarm.hosts if peer != lies.attacker]
    assert all(toy(swarm, peer).parameters[0] != AttackOnBranch.MADE for peer in honest)
    assert not any(swarm.reports(peer, "unattested_state") for peer in honest)
    confirmed = {peer: toy(swarm, peer).confirmed for peer in honest}
    told = {
        toy(swarm, peer).digest
        for peer, said in confirmed.items()
        if said is not None and said.agreed
    }
    assert len(told) <= 1, "who is told that all hold the same holds the same"
    assert max(len(swarm.reports(peer, "recovering")) for peer in honest) <= 1, "sent to and fro"


def keeps_its_end_to_itself(
    attacker: PeerId, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
) -> Iterable[OutMessage]:
    said = envelope.message
    silent = sender == attacker and isinstance(said, Hello) and said.round_id >= ROUNDS
    return [] if silent else [(to, envelope, payload)]


def test_a_commit_of_the_round_after_the_last_one_takes_more_than_a_liars_word() -> None:
    """A server that says nothing of its state hands out two results of a round for which
    nobody has an update."""
    attacker, swarm = 1, swarm_that_ends(3, n=5, f=1, endless=(1,))
    swarm.outgoing = partial(keeps_its_end_to_itself, attacker)
    run_to(swarm, ROUNDS)
    swarm.run_for(0.02)
    honest = [peer for peer in swarm.hosts if peer != attacker]
    assert all(swarm.hosts[peer].core.final_check.round_id == ROUNDS for peer in honest), (
        "they do not wait: this proves nothing"
    )
    rounds = swarm.hosts[0].core.rounds
    turn, roster = rounds.shards[0].order.index(attacker), rounds.roster.peers
    shares = tuple(Contribution(peer, 1, 0.2, 1.0, 0) for peer in roster)
    for peer in honest:
        lie = payload_of(
            np.full(sum(rounds.shard_bytes) // 4, 0.01 * (1 + peer // 3), np.float32), digest=True
        )
        head = (b"lineage!", ROUNDS, 0, turn, turn, attacker, rounds.chain, lie.digest)
        commit = Commit(*head, shares, (), roster, 0.1, "", rates=rounds.replicated.rates)
        similarity = ResultSimilarity(float(np.linalg.norm(lie.data)))
        swarm.inject(peer, Received(attacker, 0, commit, lie, similarity))
    swarm.run_until(lambda: all_confirmed(swarm, attacker), limit_s=LIMIT_S)
    assert {toy(swarm, peer).next_round for peer in honest} == {ROUNDS}
    assert len(replicas(swarm, attacker)) == 1
    assert agreed(swarm, attacker) == {True}


@pytest.mark.parametrize(
    "beside", [keeps_silent, says_nothing_of_its_state, says_another_hash_to_each]
)
@pytest.mark.parametrize("seed", effort((2,), tuple(range(10))))
def test_what_the_liar_does_then_keeps_nobody_longer_than_a_drain(
    beside: Callable[..., Envelope | None], seed: int
) -> None:
    swarm = swarm_that_ends(seed, n=5, f=1)
    swarm.outgoing = lies = FinalRoundAttack(
        ROUNDS - 1, (0, 1, 2, 3, 4)[seed % 5 :][:1], beside=beside
    )
    run_to(swarm, ROUNDS)
    ended_at = swarm.now
    swarm.run_until(lambda: all_confirmed(swarm, lies.attacker), limit_s=LIMIT_S)
    assert lies.told
    assert len(replicas(swarm, lies.attacker)) == 1
    assert agreed(swarm, lies.attacker) == {True}
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
    swarm.outgoing = lies = FinalRoundAttack(ROUNDS - 1, (0, 1), beside=says_another_hash_to_each)
    swarm.run_until(
        lambda: all(swarm.hosts[peer].halt is not None for peer in (0, 1)), limit_s=LIMIT_S
    )
    honest = 1 - lies.attacker
    assert swarm.hosts[honest].halt == Halt("finished", 0)
    assert agreed(swarm, lies.attacker, 2) == {False}
    assert swarm.reports(honest, "unconfirmed_result")


def test_who_waits_for_a_state_that_does_not_come_is_told_so() -> None:
    """All who could vouch are there, and their trainers hang. Whoever has a state stays for a drain
    and the time for the lost."""
    swarm = swarm_that_ends(5, n=5, f=1, round_timeout_s=30.0)
    swarm.outgoing = FinalRoundAttack(ROUNDS - 1, (2,))
    run_to(swarm, ROUNDS)
    swarm.run_until(lambda: bool(swarm.reports(2, "recovering")), limit_s=LIMIT_S)
    since, trainer, core = swarm.now, toy(swarm, 2), swarm.hosts[2].core
    for peer in swarm.hosts:
        swarm.stop_trainer(peer)
    swarm.run_until(lambda: bool(swarm.reports(2, "unconfirmed_result")), limit_s=LIMIT_S)
    assert DRAIN_S + LINGER_S - 0.1 < swarm.now - since < DRAIN_S + LINGER_S + 1.0
    assert core.phase == "recovering"
    swarm.inject(2, ConfirmState(ROUNDS))
    assert core.final_check.round_id is None
    swarm.resume_trainer(2)
    swarm.run_for(0.1)
    assert trainer.confirmed == StateConfirmed(ROUNDS, False)


def test_a_peer_that_gets_no_state_before_all_others_end_reports_so() -> None:
    """As it was: after each vain attempt the peer asked anew, and its trainer waited without
    end."""

    def drop_states(
        sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        return [] if isinstance(envelope.message, StateOffer) else [(to, envelope, payload)]

    swarm = swarm_that_ends(5, n=5, f=1)
    swarm.outgoing = FinalRoundAttack(ROUNDS - 1, (2,), then=drop_states)
    run_to(swarm, ROUNDS)
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    assert toy(swarm, 2).confirmed == StateConfirmed(ROUNDS, False)
    assert swarm.reports(2, "unconfirmed_result")


def test_who_is_asked_to_stop_meanwhile_does() -> None:
    swarm = swarm_that_ends(5, n=5, f=1)
    swarm.outgoing = FinalRoundAttack(ROUNDS - 1, (2,), beside=says_another_hash_to_each)
    run_to(swarm, ROUNDS)
    swarm.run_for(0.1)
    waiting = [peer for peer in swarm.hosts if toy(swarm, peer).confirmed is None]
    assert waiting
    asked_at = swarm.now
    for peer in waiting:
        swarm.stop(peer)
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    assert swarm.now < asked_at + DRAIN_S + 0.5


# --- the checker ----------------------------------------------------------------------------------


def lied_to_at_last(**core: Any) -> tuple[Swarm[Peer], IdenticalFinalStates]:
    """A swarm at its end, whose cores' ``confirming`` has ``core`` in place of its own."""
    swarm, checker = swarm_that_ends(1, n=5, f=1), IdenticalFinalStates()
    swarm.hooks.append(checker)
    swarm.outgoing = FinalRoundAttack(ROUNDS - 1, (2,))
    run_to(swarm, ROUNDS - 10)
    for host in swarm.hosts.values():
        for name, planted in core.items():
            setattr(host.core.final_check, name, partial(planted, host.core.final_check))
    return swarm, checker


def test_a_sound_end_is_judged_and_nobody_waits_in_vain() -> None:
    swarm, checker = lied_to_at_last()
    swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)
    checker.judge_end(swarm.hosts)
    assert checker.judged >= 10


def test_who_takes_its_own_state_for_everybodys_is_caught() -> None:
    swarm, _ = lied_to_at_last(
        check_result=lambda confirming, takes_part, now: confirming._confirm(True)
    )
    with pytest.raises(
        Violation, match=r"S9 .* it ends before round 60 with \w+, peer \d with \w+"
    ):
        swarm.run_until(lambda: over(swarm), limit_s=LIMIT_S)


def test_schedules_end_with_a_lie_in_the_last_round() -> None:
    schedule = Schedule(
        8, peers=6, active_s=1.0, duration_s=1.0, compute_s=(0.02, 0.04), aggregator="median"
    )
    outcome = run(schedule)
    assert outcome.violation is None, outcome.violation
    assert outcome.counts["lied_to_at_last"]
    assert outcome.judged_by["IdenticalFinalStates"] >= 10
    assert outcome.judged_by["AllPeersEnd"], "some take the final state over"


def test_s9_seed_972837_two_with_a_liars_state_are_no_majority() -> None:
    """Of four, two are killed at once, so of those who have a state one is honest and one lies:
    nobody else can vouch."""
    faults = (
        Restart(0, None, 0.01, at_s=12.8),
        Restart(3, None, 0.02, at_s=12.5),
        NodeAttack("wrong_states", (2,)),
    )
    timing = {
        "compute_s": (0.46, 0.58),
        "probe_interval_s": 0.5,
        "prepare_s": 1.0,
        "rounds_min": 50,
    }
    outcome = run(Schedule(972837, peers=4, aggregator="median", faults=faults, **timing))
    assert outcome.violation is None, outcome.violation
    assert outcome.reports["unattested_state"] > 0
