"""Rounds of very large simulated swarms: the traffic of a peer in a round, and the size of the
largest message.

Everything except sockets and training is the code of a real peer. All peers are connected from the
start, so the traffic does not include the hellos of a thousand peers that start at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any

from gossip import topologies
from gossip.core import (
    STASH_ROUNDS,
    CoreSettings,
    Effect,
    Envelope,
    Hello,
    Payload,
    Peer,
    PeerId,
    RoundSettings,
    events,
)
from gossip.inject import OutMessage
from gossip.transport import decode, encode
from gossip_lab.simulation.checkers import consensus_distance
from gossip_lab.simulation.world import (
    SharedLedgers,
    SimulationStuck,
    Swarm,
    ToyPace,
    ToyTrainer,
    address,
)

from .endings import toys_of
from .play import CachedTopology

COMPUTE_S = (0.35, 0.5)
START_TIMEOUT_S = 60.0
ROUND_TIMEOUT_S = 10.0
STEP_S, PATIENCE_S = 0.1, 120.0
KILLED_AFTER, JOINS_AFTER, BACK_AFTER = 5, 7, 10  # rounds
SAMPLES = 100_003


@dataclass(frozen=True, slots=True)
class ManyPeers:
    """Settings of a run with ``n`` peers and ``rounds`` rounds. During the run one peer is killed,
    a new peer joins, and the killed peer returns."""

    n: int
    seed: int = 1
    rounds: int = 20
    topology: str = "rolling"


@dataclass(frozen=True, slots=True)
class ManyPeersResult:
    """Traffic of a run. Bytes are those of encoded messages, without payloads and without the
    framing of ZeroMQ, TCP and IP. (Payloads: with n shards and a server for each, a peer sends, and
    receives, 2 (n - 1) / n times the bytes of an update.)

    Attributes:
        rounds: Round that all peers have reached at the end.
        together: Whether all running peers, including the new and the returned peer, have equal
            parameters at the end. In gossip rounds: whether their rounds and parameters are as
            close as required.
        sent_bytes: Mean bytes that a peer sends in a round.
        most_sent_bytes: Maximum bytes that a peer sends in a round; this peer is the server.
        largest: Type of message -> bytes of the largest message.
        sent: Type of message -> number of sent messages.
    """

    n: int
    topology: str
    rounds: int
    together: bool
    sent_bytes: float
    most_sent_bytes: int
    largest: dict[str, int]
    sent: dict[str, int]
    simulated_s: float


@dataclass(frozen=True, slots=True)
class SwarmSpeed:
    """Speed of a simulation without faults.

    Attributes:
        peer_rounds_per_s: Rounds times peers, per second of processor time.
        events_per_peer_round: Events that the cores handled, per peer and round.
        mib_per_peer: Growth of the maximum resident memory of this process per peer, in MiB.
    """

    n: int
    topology: str
    rounds: int
    peer_rounds_per_s: float
    events_per_peer_round: float
    mib_per_peer: float


@dataclass(slots=True)
class TrafficMeter:
    """Counter of traffic that is used as ``Swarm.outgoing``. It encodes all sent messages, and
    checks that the largest message of each type can be decoded. Bytes are those of encoded
    messages, without payloads and without the framing of ZeroMQ, TCP and IP.

    Attributes:
        by_peer: Bytes that each peer has sent.
        largest: Name of a message type -> bytes of the largest message.
        sent: Name of a message type -> number of messages.
    """

    by_peer: Counter[PeerId] = field(default_factory=Counter)
    largest: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    _last: Envelope | None = None  # last message: encoded once for several receivers
    _length: int = 0

    def __call__(
        self, sender: PeerId, to: PeerId, said: Envelope, payload: Payload | None
    ) -> tuple[OutMessage, ...]:
        name = type(said.message).__name__
        if said is not self._last:
            data = encode(said)
            self._last, self._length = said, len(data)
            if len(data) > self.largest.get(name, 0):
                assert decode(data) == said
                self.largest[name] = len(data)
        self.sent[name] += 1
        self.by_peer[sender] += self._length
        return ((to, said, payload),)


@dataclass(slots=True)
class Acquaintance:
    """Knowledge that all peers share: the present incarnation of each peer, and the hello of each
    peer at the start of the run."""

    lives: dict[PeerId, int]
    hellos: dict[PeerId, Hello] = field(default_factory=dict)

    def derive_hellos(self, own: Hello) -> dict[PeerId, Hello]:
        """Return the hellos of all peers. All peers begin with the same model, so their hellos
        differ from ``own`` only in the addresses."""
        if not self.hellos:
            for peer in self.lives:
                control, bulk = address(peer)
                self.hellos[peer] = replace(own, address=control, bulk=bulk)
        return self.hellos


class AcquaintedPeer(Peer):
    """A peer that starts as if it had been in the run before: it is connected to all initial peers
    and has received their hellos. A peer that starts later only has the addresses of all peers."""

    def __init__(self, *arguments: Any, known: Acquaintance, **addresses: Any) -> None:
        super().__init__(*arguments, **addresses)
        self._known = known
        self._is_first = self.membership.incarnation == 0 and self.local in self.settings.peers

    def _on_started(self, now: float) -> list[Effect]:
        effects = super()._on_started(now)
        for peer, life in self._known.lives.items():
            effects += self.membership.learn(peer, *address(peer, life), life, now)
        if not self._is_first:
            return effects
        view = self.membership.view
        for member in view.others():
            view.place(member, member.status, met=True)
            member.lane_up = member.linked = member.was_linked = True
            member.heard_at = now
            view.settle(member)
        effects = [effect for effect in effects if not isinstance(effect, events.Connect)]
        # Every peer starts a table exchange over its first link. Here the link to the next peer is
        # the first link.
        neighbour = (self.local + 1) % len(self.settings.peers)
        return effects + self.membership.on_link(neighbour, True, "", now)

    def _gather(self, now: float) -> list[Effect]:
        if not self._is_first:
            return super()._gather(now)
        for peer, hello in self._known.derive_hellos(self.hello_exchange.hello()).items():
            self.peer_progress.on_hello(peer, 0, hello, now)
        return self._decide(now)


def many_peers(
    world: ManyPeers, tell: Callable[[str], None] = lambda text: None
) -> ManyPeersResult:
    """Play the rounds. Raises: SimulationStuck: A round or a change of the roster does not happen
    in time."""
    known = Acquaintance(dict.fromkeys(range(world.n), 0))
    swarm = _swarm(world, known)
    killed, newcomer = world.n // 2, world.n
    meter = TrafficMeter()
    swarm.outgoing = meter
    _advance(swarm, partial(_is_in, swarm, 1), "a first round", tell)
    begun = _round(swarm)
    before = Counter(meter.by_peer)
    most = 0
    by_peer = before
    for number in range(begun + 1, world.rounds + 1):
        _advance(swarm, partial(_is_in, swarm, number), f"round {number}", tell)
        most = max(most, *(meter.by_peer - by_peer).values())
        by_peer = Counter(meter.by_peer)
        if number == KILLED_AFTER:
            swarm.crash(killed)
        elif number == JOINS_AFTER:
            known.lives[newcomer] = 0
            swarm.join(newcomer)
        elif number == BACK_AFTER:
            known.lives[killed] = 1
            swarm.restart(killed)
    sent_bytes = (meter.by_peer - before).total() / world.n / (_round(swarm) - begun)
    _advance(swarm, partial(_is_whole, swarm, world.n + 1), "all are in the roster", tell)
    return ManyPeersResult(
        world.n,
        world.topology,
        _round(swarm),
        _are_together(swarm),
        sent_bytes,
        most,
        dict(sorted(meter.largest.items())),
        dict(sorted(meter.sent.items())),
        swarm.now,
    )


def measure_speed(world: ManyPeers) -> SwarmSpeed:
    """Play two rounds, and then measure ``world.rounds`` rounds without a fault. The measured
    memory is correct only for the first call in a process. Raises: SimulationStuck: A round does
    not end in time."""
    resident_kib = getrusage(RUSAGE_SELF).ru_maxrss
    swarm = _swarm(world, Acquaintance(dict.fromkeys(range(world.n), 0)))
    _advance(swarm, partial(_is_in, swarm, 2), "two rounds", lambda text: None)
    begun = _round(swarm)
    events_before = swarm.dispatcher.handled
    before_s = process_time()
    last = begun + world.rounds
    _advance(swarm, partial(_is_in, swarm, last), f"round {last}", lambda text: None)
    took_s = process_time() - before_s
    peer_rounds = world.n * (_round(swarm) - begun)
    return SwarmSpeed(
        world.n,
        world.topology,
        world.rounds,
        round(peer_rounds / took_s, 1),
        round((swarm.dispatcher.handled - events_before) / peer_rounds, 1),
        round((getrusage(RUSAGE_SELF).ru_maxrss - resident_kib) / 1024 / world.n, 2),
    )


def _swarm(world: ManyPeers, known: Acquaintance) -> Swarm[Peer]:
    topology = CachedTopology(topologies.load(world.topology))
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

    ledgers = SharedLedgers()

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = address(peer, incarnation)
        core = AcquaintedPeer(
            peer, incarnation, settings, topology, known=known, control=control, bulk=bulk
        )
        ledgers.add(core)
        return core

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        return ToyTrainer(
            peer,
            world.seed,
            incarnation=incarnation,
            pace=ToyPace(COMPUTE_S),
            samples_total=SAMPLES,
        )

    swarm = Swarm(
        make_core,
        world.n,
        world.seed,
        make_trainer=make_trainer,
        encoded=False,
        start_spread_s=0.0,
        traced=False,
    )
    swarm.connect_all()
    return swarm


def _round(swarm: Swarm[Peer]) -> int:
    """Return the round that all training peers have reached."""
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


def _are_together(swarm: Swarm[Peer]) -> bool:
    rounds = {peer: core.rounds.round_id for peer, core in swarm.inspections.items()}
    trainers = toys_of(swarm)
    gossip = next(iter(swarm.inspections.values())).gossip
    if gossip is None:
        held = {(rounds[peer], trainer.digest) for peer, trainer in trainers.items()}
        return len(held) == len({round_id for round_id, _ in held})
    near = max(rounds.values()) - min(rounds.values()) <= STASH_ROUNDS
    apart = consensus_distance([trainer.parameters.tolist() for trainer in trainers.values()])
    return near and apart <= gossip.settings.gossip.consensus_bound


def _advance(
    swarm: Swarm[Peer], predicate: Callable[[], bool], what: str, tell: Callable[[str], None]
) -> None:
    """Run the swarm until the predicate is true. It is tested only every ``STEP_S``, because a test
    of a thousand peers takes a second."""
    until_s = swarm.now + PATIENCE_S
    while not predicate():
        if swarm.now >= until_s:
            raise SimulationStuck(
                f"not met after {PATIENCE_S:g} s: {what}\n{swarm.summary()[:2000]}"
            )
        swarm.run_for(STEP_S)
    tell(f"{swarm.now:.1f} s: {what}")
