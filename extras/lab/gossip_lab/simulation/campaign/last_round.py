"""The end of a simulated training: all scripts reach their last round, and the server of that round
attacks.

In any other round the hashes of the next one would reveal the attack. The false result is 1 %
longer than the true one, so no peer rejects it. In some runs one peer is killed shortly before the
last round, and returns when the others have finished, or are about to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from gossip.core import (
    Commit,
    Envelope,
    Payload,
    Peer,
    PeerId,
    RollingRounds,
    StateAttestation,
    StateRequest,
)
from gossip.inject import OutMessage
from gossip_lab.simulation.checkers import EndsAlike
from gossip_lab.simulation.world import Outgoing, ToyTrainer, payload_of

if TYPE_CHECKING:
    from gossip_lab.simulation.world import Swarm

ROUNDS = 3  # minimum number of rounds from the present round to the last one
LOOKED_AT = 12
LONGER = np.float32(1.01)
SLICE_S = 0.25
LATE_SHARE = 0.6  # share of the ends with a late peer, if enough other peers are present
AWAY_S = (0.05, 3.0)
COPY_SHARES = (0.0, 0.1, 0.2, 0.3)
"""Shares of a round timeout that copying or restoring a state may take. A peer that waits longer
requests the state from another peer."""
# consecutive messages about states between the late peer and another
LOST_MOST = 3


def toys_of(swarm: Swarm[Peer]) -> dict[PeerId, ToyTrainer]:
    trainers = {peer: host.trainer for peer, host in swarm.hosts.items()}
    return {peer: it for peer, it in trainers.items() if isinstance(it, ToyTrainer)}


def slow_copies(swarm: Swarm[Peer], copy_s: float) -> None:
    """Let copying or restoring a state take at least this long."""
    for trainer in toys_of(swarm).values():
        trainer.pace.snapshot_s = max(copy_s, trainer.pace.snapshot_s)


class FinalRoundAttack:
    """The first server that sends its result of ``round_id`` sends some peers a different one. It
    replaces ``Swarm.outgoing``.

    Args:
        victims: Peers that get the different result. If the attacker is the only one, another peer
            gets it.
        able: Peers that may be that server; None means any.
        then: Handles all other messages; None if they are sent unchanged.
        beside: Changes the attacker's other messages after the attack, and drops those for which it
            returns None; None if they stay.
    """

    def __init__(
        self,
        round_id: int,
        victims: Iterable[PeerId],
        able: Iterable[PeerId] | None = None,
        then: Outgoing | None = None,
        beside: Callable[[PeerId, Envelope], Envelope | None] | None = None,
    ) -> None:
        self.round_id, self.victims, self._then, self._beside = (
            round_id,
            frozenset(victims),
            then,
            beside,
        )
        self._able = None if able is None else frozenset(able)
        self.attacker: PeerId = -1  # none yet
        self.told = 0

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
            if self.attacker < 0 and (self._able is None or sender in self._able):
                self.attacker = sender
            if (
                sender == self.attacker
                and commit.shard == 0
                and to in (self.victims - {sender} or {int(sender == 0)})
            ):
                self.told += 1
                lie = payload_of((payload.data * LONGER).astype(np.float32), digest=True)
                return [(to, replace(envelope, message=replace(commit, digest=lie.digest)), lie)]
        elif sender == self.attacker and self._beside is not None:
            said = self._beside(to, envelope)
            return [] if said is None else [(to, said, payload)]
        return (
            [(to, envelope, payload)]
            if self._then is None
            else self._then(sender, to, envelope, payload)
        )


class LateRejoin:
    """A peer that is killed in its last rounds, and returns. Its first messages about states, to it
    and from it, may be lost. Sets ``Swarm.outgoing``."""

    def __init__(self, swarm: Swarm[Peer], peer: PeerId, last: int, rng: Random) -> None:
        self.peer, self._then = peer, swarm.outgoing
        away_s, copy_s = (
            rng.uniform(*AWAY_S),
            rng.choice(COPY_SHARES) * swarm.hosts[peer].core.settings.rounds.round_timeout_s,
        )
        self._lost = {
            (other, asks): rng.randint(0, LOST_MOST)
            for other in swarm.hosts
            for asks in (True, False)
        }
        self.takes_s = away_s + LOST_MOST + 4 * copy_s
        swarm.restart(peer, away_s)
        slow_copies(swarm, copy_s)
        if (trainer := toys_of(swarm).get(peer)) is not None:
            trainer.rounds = last
        swarm.outgoing = self

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        asks = isinstance(envelope.message, StateRequest)
        if self.peer in (sender, to) and (asks or isinstance(envelope.message, StateAttestation)):
            words = to if sender == self.peer else sender, asks
            # No message of a peer that joins at the end is lost.
            if (left := self._lost.get(words, 0)) > 0:
                self._lost[words] = left - 1
                return []
        return (
            [(to, envelope, payload)]
            if self._then is None
            else self._then(sender, to, envelope, payload)
        )


def play_end(swarm: Swarm[Peer], attackers: frozenset[PeerId], checker: EndsAlike) -> int:
    """Let all peers reach their last round, and judge it. Does nothing if f is 0, and in gossip
    rounds.

    Args:
        attackers: Attackers of the run: one of them is the attacking server, if there are any.
        Returns: Number of peers that got a false result.
    """
    cores = {peer: host.core for peer, host in swarm.hosts.items() if host.running}
    settings = next((core.settings for core in cores.values()), None)
    if (
        settings is None
        or not settings.f
        or not all(isinstance(core.rounds, RollingRounds) for core in cores.values())
    ):
        return 0
    last = _last_of(max(cores.values(), key=lambda core: core.rounds.round_id), attackers)
    rng = Random(f"last round/{swarm.seed}")
    victims = rng.sample(sorted(cores), rng.randint(1, max(1, len(cores) - 1)))
    lies = swarm.outgoing = FinalRoundAttack(last - 1, victims, attackers or None, swarm.outgoing)
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
    """Return a late rejoin in some ends, if the other peers are enough for the remaining rounds and
    to attest their state to the latecomer."""
    lot, honest = rng.random(), [peer for peer in sorted(cores) if peer not in attackers]
    settings, roster = (
        next(iter(cores.values())).settings,
        max(len(core.rounds.roster) for core in cores.values()),
    )
    enough = max(2 * settings.f, roster // 2, settings.updates_min - 1) < len(cores) - 1
    return (
        LateRejoin(swarm, rng.choice(honest), last, rng)
        if honest and enough and lot < LATE_SHARE
        else None
    )


def _last_of(core: Peer, attackers: frozenset[PeerId]) -> int:
    """Return the number of all rounds: a few more, such that an attacker may serve the last one, if
    there are any."""
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
    """Whether the peer has not reached its end yet."""
    host = swarm.hosts[peer]
    comes = host.running or host.state == "starting"
    return comes and isinstance(host.trainer, ToyTrainer) and host.trainer.confirmed is None
