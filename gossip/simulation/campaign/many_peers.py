"""Rounds of a swarm far larger than real ones have been: what a peer sends and receives in a round,
and how large the largest message is.

Everything is what a real peer runs but the sockets and the training. All have met before, so that
the greetings of a thousand peers that start in one moment are no part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gossip import topologies
from gossip.core import (
    CoreSettings,
    Effect,
    Envelope,
    Payload,
    Peer,
    PeerId,
    RoundSettings,
)
from gossip.inject import OutMessage
from gossip.simulation.world import SimulationStuck, Swarm, ToyTrainer, address, weighted_mean
from gossip.transport import decode, encode

from .play import CachedTopology

COMPUTE_S = (0.35, 0.5)
START_TIMEOUT_S = 60.0
ROUND_TIMEOUT_S = 10.0
STEP_S = 0.1
PATIENCE_S = 120.0
KILLED_AFTER, JOINS_AFTER, BACK_AFTER = 5, 7, 10  # rounds
SAMPLES = 100_003


@dataclass(frozen=True, slots=True)
class ManyPeers:
    """``rounds`` rounds of ``n`` peers. On the way one is killed, one joins, and the killed one
    comes back."""

    n: int
    seed: int = 1
    rounds: int = 20


@dataclass(frozen=True, slots=True)
class ManyPeersResult:
    """Bytes are those of encoded messages; what ZeroMQ, TCP and IP add is not in them. Payloads are
    left out: with one server for each of n shards a peer sends and receives twice the update,
    less an n-th part.

    Attributes:
        rounds: The round that all are in at the end.
        together: Whether all who run hold the same parameters then, the newcomer and the one that
            came back among them.
        sent_bytes: By a peer in a round, on average.
        most_sent_bytes: By whoever sent most in a round: its server.
        largest: Type of message -> bytes of the largest one.
        sent: Type of message -> how many were sent.
    """

    n: int
    rounds: int
    together: bool
    sent_bytes: float
    most_sent_bytes: int
    largest: dict[str, int]
    sent: dict[str, int]
    simulated_s: float


@dataclass(slots=True)
class Meter:
    """Encodes what is sent, and reads the largest of each kind as its receiver would."""

    by_peer: Counter[PeerId] = field(default_factory=Counter)
    largest: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0
    _last: Envelope | None = None
    _length: int = 0

    def __call__(
        self, sender: PeerId, to: PeerId, said: Envelope, payload: Payload | None
    ) -> tuple[OutMessage, ...]:
        if said is not self._last:
            data = encode(said)
            self._last, self._length = said, len(data)
            name = type(said.message).__name__
            if len(data) > self.largest.get(name, 0):
                assert decode(data) == said
                self.largest[name] = len(data)
        self.sent[type(said.message).__name__] += 1
        self.nbytes += self._length
        self.by_peer[sender] += self._length
        return ((to, said, payload),)


class AcquaintedPeer(Peer):
    """Knows everybody's address as it starts; whoever is here from the start has met everybody who
    is."""

    def __init__(self, *arguments: Any, lives: dict[PeerId, int], **addresses: Any) -> None:
        super().__init__(*arguments, **addresses)
        self._lives = lives

    def _on_started(self, now: float) -> list[Effect]:
        effects = super()._on_started(now)
        for peer, life in self._lives.items():
            effects += self.membership.learn(peer, *address(peer, life), life, now)
        if self.membership.incarnation == 0 and self.local in self.settings.peers:
            for member in self.membership.view.others():
                self.membership.view.place(member, member.status, met=True)
        return effects


def many_peers(
    world: ManyPeers, tell: Callable[[str], None] = lambda text: None
) -> ManyPeersResult:
    """Plays it. Raises: SimulationStuck: Something does not come about."""
    lives = dict.fromkeys(range(world.n), 0)
    swarm = _swarm(world, lives)
    killed, newcomer = world.n // 2, world.n
    meter = Meter()
    swarm.outgoing = meter
    _advance(swarm, partial(_is_in, swarm, 1), "a first round", tell)
    begun, before, by_peer = _round(swarm), meter.nbytes, Counter(meter.by_peer)
    most = 0
    acts: dict[int, Callable[[], None]] = {
        KILLED_AFTER: lambda: swarm.crash(killed),
        JOINS_AFTER: lambda: _start(swarm, newcomer, 0, lives),
        BACK_AFTER: lambda: _start(swarm, killed, 1, lives),
    }
    for number in range(begun + 1, world.rounds + 1):
        _advance(swarm, partial(_is_in, swarm, number), f"round {number}", tell)
        most = max(most, *(meter.by_peer - by_peer).values())
        by_peer = Counter(meter.by_peer)
        if act := acts.get(number):
            act()
    sent_bytes = (meter.nbytes - before) / world.n / (_round(swarm) - begun)
    _advance(swarm, partial(_is_whole, swarm, world.n + 1), "all are in the roster", tell)
    held = {
        (swarm.inspections[peer].rounds.round_id, host.trainer.digest)
        for peer, host in swarm.hosts.items()
        if isinstance(host.trainer, ToyTrainer)
    }
    return ManyPeersResult(
        world.n,
        _round(swarm),
        len(held) == len({round_id for round_id, _ in held}),
        sent_bytes,
        most,
        dict(sorted(meter.largest.items())),
        dict(sorted(meter.sent.items())),
        swarm.now,
    )


def _swarm(world: ManyPeers, lives: dict[PeerId, int]) -> Swarm[Peer]:
    topology = CachedTopology(topologies.load("rolling"))
    settings = CoreSettings(
        b"simulate",
        b"lineage!",
        seed=world.seed,
        peers=tuple(range(world.n)),
        room=world.n + 1,
        rounds=RoundSettings(
            round_timeout_s=ROUND_TIMEOUT_S, start_timeout_s=START_TIMEOUT_S, min_peers=0
        ),
    )

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = address(peer, incarnation)
        return AcquaintedPeer(
            peer, incarnation, settings, topology, lives=lives, control=control, bulk=bulk
        )

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        return ToyTrainer(
            peer,
            world.seed,
            incarnation=incarnation,
            compute_s=COMPUTE_S,
            reducer=weighted_mean,
            samples_total=SAMPLES,
        )

    return Swarm(make_core, world.n, world.seed, make_trainer=make_trainer, encoded=False)


def _start(swarm: Swarm[Peer], peer: PeerId, life: int, lives: dict[PeerId, int]) -> None:
    lives[peer] = life
    if life:
        swarm.restart(peer)
    else:
        swarm.join(peer)


def _round(swarm: Swarm[Peer]) -> int:
    """That all who train are in or beyond."""
    training = [
        core.rounds.round_id
        for peer, core in swarm.inspections.items()
        if swarm.hosts[peer].running and core.phase == "running"
    ]
    return min(training, default=0)


def _is_in(swarm: Swarm[Peer], number: int) -> bool:
    return _round(swarm) >= number


def _is_whole(swarm: Swarm[Peer], n: int) -> bool:
    return len(swarm.up) == n and all(
        core.phase == "running" and len(core.rounds.roster) == n
        for core in swarm.inspections.values()
    )


def _advance(
    swarm: Swarm[Peer], predicate: Callable[[], bool], what: str, tell: Callable[[str], None]
) -> None:
    """Runs until then, looking every ``STEP_S``."""
    limit_s = swarm.now + PATIENCE_S
    while not predicate():
        if swarm.now >= limit_s:
            raise SimulationStuck(f"not so after {PATIENCE_S:g} s: {what}")
        swarm.run_for(STEP_S)
    tell(f"{swarm.now:.1f} s: {what}")
