"""The end of a simulated training, in which all scripts reach their last round.

In rolling rounds the server of the last round attacks, because the hashes of a next round would
reveal the attack. Its false result is 1 % longer than the true result, so no peer rejects it. In
some runs a peer is killed shortly before the last round, and returns about when the other peers
finish.

In gossip rounds the peers reach the last round at different times. In most runs some peers are slow
for a while, hang, or are killed and restarted. They take part again about when the other peers
leave, or after that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from gossip.core import (
    Commit,
    Envelope,
    GossipRounds,
    Payload,
    Peer,
    PeerId,
    RollingRounds,
    StateAttestation,
    StateRequest,
)
from gossip.inject import FAR_ROUNDS, OutMessage
from gossip_lab.simulation.checkers import AllPeersEnd, IdenticalFinalStates
from gossip_lab.simulation.world import Outgoing, ToyTrainer, payload_of, send_unchanged

if TYPE_CHECKING:
    from gossip_lab.simulation.world import Swarm


def toys_of(swarm: Swarm[Peer]) -> dict[PeerId, ToyTrainer]:
    trainers = {peer: host.trainer for peer, host in swarm.hosts.items()}
    return {peer: it for peer, it in trainers.items() if isinstance(it, ToyTrainer)}


def running_cores(swarm: Swarm[Peer], kind: type) -> dict[PeerId, Peer]:
    """Return the cores of the running peers, or an empty dictionary if some have another kind of
    rounds."""
    cores = {peer: host.core for peer, host in swarm.hosts.items() if host.running}
    return cores if all(isinstance(core.rounds, kind) for core in cores.values()) else {}


def slow_copies(trainer: ToyTrainer, copy_s: float) -> None:
    """Make copying or restoring a state take at least ``copy_s`` seconds."""
    trainer.pace.snapshot_s = max(copy_s, trainer.pace.snapshot_s)


def restart(swarm: Swarm[Peer], peer: PeerId, after_s: float, last: int) -> float:
    """Restart a peer after ``after_s``, with a script of ``last`` rounds. Return the seconds until
    its model is prepared."""
    swarm.restart(peer, after_s)
    if (trainer := toys_of(swarm).get(peer)) is None:
        return after_s
    trainer.rounds = last
    return after_s + trainer.pace.prepare_s


# --- rolling rounds -------------------------------------------------------------------------------

ROUNDS = 3  # minimum number of rounds from the present round to the last one
LOOKED_AT = 12
LONGER = np.float32(1.01)
SLICE_S = 0.25
LATE_SHARE = 0.6  # share of the runs with a late peer, if enough others are present
LATE_S = (0.05, 3.0)
COPY_SHARES = (0.0, 0.1, 0.2, 0.3)
"""Possible durations of copying or restoring a state, as shares of a round timeout. A peer that
waits too long requests the state from another peer."""
# Maximum number of consecutive lost state requests, or replies, between the late peer and another
# peer.
LOST_MOST = 3


@dataclass(slots=True)
class FinalRoundAttack:
    """Attack by the first server that sends its result of ``round_id``: it sends a different result
    to some peers. The object is used as ``Swarm.outgoing``.

    Attributes:
        victims: Peers that receive the different result. If the attacker is the only victim,
            another peer receives it.
        able: Peers that may be the attacking server; None means any peer.
        then: Function that handles all other messages.
        beside: Function that changes the attacker's other messages after the attack, and returns
            None for a message to drop. If ``beside`` is None, these messages do not change.
        attacker: The attacking server; -1 before the attack.
        told: Number of different results that were sent.
    """

    round_id: int
    victims: Collection[PeerId]
    able: Collection[PeerId] | None = None
    then: Outgoing = send_unchanged
    beside: Callable[[PeerId, Envelope], Envelope | None] | None = None
    attacker: PeerId = -1
    told: int = 0

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        commit = envelope.message
        if (
            isinstance(commit, Commit)
            and commit.round_id == self.round_id
            and commit.server == sender
            and payload is not None
        ):
            if self.attacker < 0 and (self.able is None or sender in self.able):
                self.attacker = sender
            if (
                sender == self.attacker
                and commit.shard == 0
                and to in ({*self.victims} - {sender} or {int(sender == 0)})
            ):
                self.told += 1
                lie = payload_of((payload.data * LONGER).astype(np.float32), digest=True)
                return [(to, replace(envelope, message=replace(commit, digest=lie.digest)), lie)]
        elif sender == self.attacker and self.beside is not None:
            said = self.beside(to, envelope)
            return [] if said is None else [(to, said, payload)]
        return self.then(sender, to, envelope, payload)


class LateRejoin:
    """Kill and restart of a peer in its last rounds. The first state requests and replies to it and
    from it may be lost. The object is used as ``Swarm.outgoing``."""

    def __init__(self, swarm: Swarm[Peer], peer: PeerId, last: int, rng: Random) -> None:
        self.peer, self._then = peer, swarm.outgoing or send_unchanged
        away_s = rng.uniform(*LATE_S)
        copy_s = rng.choice(COPY_SHARES) * swarm.hosts[peer].core.settings.rounds.round_timeout_s
        self._lost = {
            (other, asks): rng.randint(0, LOST_MOST)
            for other in swarm.hosts
            for asks in (True, False)
        }
        self.takes_s = away_s + LOST_MOST + 4 * copy_s
        restart(swarm, peer, away_s, last)
        for trainer in toys_of(swarm).values():
            slow_copies(trainer, copy_s)
        swarm.outgoing = self

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        asks = isinstance(envelope.message, StateRequest)
        if self.peer in (sender, to) and (asks or isinstance(envelope.message, StateAttestation)):
            words = to if sender == self.peer else sender, asks
            # A peer that joins at the end is not in ``_lost``; none of its messages is lost.
            if (left := self._lost.get(words, 0)) > 0:
                self._lost[words] = left - 1
                return []
        return self._then(sender, to, envelope, payload)


def play_end(swarm: Swarm[Peer], checker: IdenticalFinalStates) -> int:
    """Run the swarm until all peers have reached their last round, and judge the end. Do nothing if
    f is 0 or if the rounds are gossip rounds. If the run has attackers, one of them is the
    attacking server.

    Returns: Number of peers to which a false result was sent.
    """
    cores = running_cores(swarm, RollingRounds)
    attackers = checker.conditions.attackers
    settings = next((core.settings for core in cores.values()), None)
    if settings is None or not settings.f:
        return 0
    last = _last_of(max(cores.values(), key=lambda core: core.rounds.round_id), attackers)
    rng = Random(f"last round/{swarm.seed}")
    victims = rng.sample(sorted(cores), rng.randint(1, max(1, len(cores) - 1)))
    lies = swarm.outgoing = FinalRoundAttack(
        last - 1, victims, attackers or None, swarm.outgoing or send_unchanged
    )
    for trainer in toys_of(swarm).values():
        trainer.rounds = last
    late = _latecomer(swarm, cores, attackers, last, rng)
    rounds = settings.rounds
    until = (
        swarm.now
        + 2 * (rounds.drain_timeout_s + rounds.round_timeout_s)
        + (late.takes_s if late is not None else 0.0)
    )
    while swarm.now < until and any(_trains(swarm, peer) for peer in cores):
        swarm.run_for(SLICE_S)
    checker.judge_end([peer for peer in cores if peer not in attackers])
    return lies.told


def _latecomer(
    swarm: Swarm[Peer],
    cores: dict[PeerId, Peer],
    attackers: frozenset[PeerId],
    last: int,
    rng: Random,
) -> LateRejoin | None:
    """Return a late rejoin in some of the runs in which the other peers are enough to complete the
    remaining rounds, and to attest their state to the late peer."""
    lot = rng.random()
    honest = [peer for peer in sorted(cores) if peer not in attackers]
    settings = next(iter(cores.values())).settings
    roster = max(len(core.rounds.roster) for core in cores.values())
    enough = max(2 * settings.f, roster // 2, settings.updates_min - 1) < len(cores) - 1
    return (
        LateRejoin(swarm, rng.choice(honest), last, rng)
        if honest and enough and lot < LATE_SHARE
        else None
    )


def _last_of(core: Peer, attackers: frozenset[PeerId]) -> int:
    """Return the total number of rounds: a few more than so far. If there are attackers, choose it
    so that an attacker may serve the last round."""
    rounds, settings = core.rounds, core.settings
    assert isinstance(rounds, RollingRounds)
    for last in range(rounds.round_id + ROUNDS, rounds.round_id + ROUNDS + LOOKED_AT):
        plan = rounds.topology(
            rounds.replicated.serving_roster(),
            last - 1,
            settings.seed,
            shards=len(rounds.shard_bytes),
        )
        if plan.servers[0][0] in attackers:
            return last
    return rounds.round_id + ROUNDS


def _trains(swarm: Swarm[Peer], peer: PeerId) -> bool:
    """Whether the peer runs or is being started, and has not ended its training yet."""
    host = swarm.hosts[peer]
    comes = host.running or host.state == "starting"
    return comes and isinstance(host.trainer, ToyTrainer) and host.trainer.confirmed is None


# --- gossip rounds --------------------------------------------------------------------------------

GOSSIP_ROUNDS = (1, 12)  # minimum and maximum number of remaining rounds
DISTURBED = 0.7  # share of the runs with disturbances
KINDS = ("slow", "hang", "trainer", "restart", "crash")
AWAY_S = (0.1, 12.0)
TOGETHER, APART_S = 0.5, 1.5
SLOWNESS = (3.0, 40.0)
GOSSIP_COPY_SHARES = (0.0, 0.1, 0.3)
HANDLING_S = (0.0, 0.005)
GOSSIP_SLICE_S = 0.5
FETCHES = 3
"""Number of round timeouts within which a peer that is behind restores the state of another
peer."""


def play_gossip_end(swarm: Swarm[Peer], checker: AllPeersEnd) -> None:
    """Run a swarm in gossip rounds until all peers have reached their end, and judge the end."""
    cores, began = running_cores(swarm, GossipRounds), swarm.now
    at = [core.rounds.round_id for core in cores.values()]
    # A peer that has restored an attacker's state is so many rounds ahead that the other peers
    # would need days to reach its round.
    if not at or max(at) >= FAR_ROUNDS:
        return
    checker.swarm, rng = swarm, Random(f"last gossip round/{swarm.seed}")
    left = rng.randint(*GOSSIP_ROUNDS)
    last, compute_s = max(at) + left, 0.0
    for trainer in toys_of(swarm).values():
        trainer.rounds = last
        compute_s = max(compute_s, trainer.pace.compute_s[1] * trainer.pace.slowness)
    over_s = _disturb(swarm, sorted(cores), last, rng)
    settings = next(iter(cores.values())).settings.rounds
    # The peer that is furthest behind reaches the end alone, or restores the state of another peer.
    alone_s = (last - min(at)) * compute_s
    rounds_s = (left + FETCHES) * (settings.round_timeout_s + compute_s)
    leaves_s = settings.drain_timeout_s + settings.linger_s
    # The other peers wait for the last peer to return. This peer then waits for them, or gives up
    # if no other peer has a state.
    until = began + over_s + alone_s + rounds_s + 2 * leaves_s + settings.quorum_timeout_s
    while swarm.now < until and checker.remaining():
        swarm.run_for(GOSSIP_SLICE_S)
    checker.judge_end(began)


def _disturb(swarm: Swarm[Peer], peers: list[PeerId], last: int, rng: Random) -> float:
    """Disturb some of the peers for a while. Return the longest duration of a disturbance, in
    seconds."""
    if rng.random() >= DISTURBED:
        return 0.0
    timeout_s = swarm.hosts[peers[0]].core.settings.rounds.round_timeout_s
    for trainer in toys_of(swarm).values():
        slow_copies(trainer, rng.choice(GOSSIP_COPY_SHARES) * timeout_s)
    together_s = rng.uniform(*AWAY_S) if rng.random() < TOGETHER else None
    most_s = 0.0
    for peer in rng.sample(peers, rng.randint(1, len(peers))):
        # The ends of the disturbances differ, so that some peers crash while others restore their
        # states.
        alone_s, apart_s = rng.uniform(*AWAY_S), rng.uniform(0.0, APART_S)
        for_s = alone_s if together_s is None else together_s + apart_s
        most_s = max(most_s, _disturb_one(swarm, peer, for_s, last, rng))
    return most_s


def _disturb_one(swarm: Swarm[Peer], peer: PeerId, for_s: float, last: int, rng: Random) -> float:
    """Disturb a peer for ``for_s`` seconds in a random way. Return the duration of the disturbance,
    in seconds."""
    over = swarm.now + for_s
    match rng.choice(KINDS):
        case "slow":
            swarm.slow_down(peer, rng.uniform(*SLOWNESS), rng.choice(HANDLING_S))
            swarm.at(over, partial(swarm.slow_down, peer, 1.0))
        case "hang":
            swarm.pause_for(peer, for_s)
        case "crash":
            swarm.at(over, lambda: swarm.crash(peer) if swarm.hosts[peer].running else None)
        case "trainer":
            swarm.stop_trainer(peer)
            swarm.at(over, partial(swarm.resume_trainer, peer))
        case _:
            return restart(swarm, peer, for_s, last)
    return for_s
