"""The exact engine: the real protocol core of each peer, in the simulator."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import inf, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gossip.core import BULK_MESSAGES, Effect, Peer, PeerId, Send, events
from gossip.errors import ConfigError, ReplicasDiverged
from gossip.faults import Blow, Hang, Restart
from gossip_lab.simulation.campaign import many_peers, play
from gossip_lab.simulation.world import (
    LinkModel,
    Network,
    Observer,
    SimulationStuck,
    Swarm,
    Watcher,
    address,
)

from .learning_trainer import LearningTrainer, RuleRunner, Swarmwide
from .moments import Moment
from .parts import Parts
from .promises import UpdateBook
from .states import ModelState, StateTable

ROUND_S_MAX = 300.0
"""Virtual time without the end of a round after which nothing more will happen, in seconds: longer
than all timeouts of the core."""
EVENTS_MAX = 50_000_000
"""Events within a round after which a core causes its own events for ever."""
ROUNDS_CHECKED = 64
"""Rounds whose replicas are compared, also with those that come late."""


class ExactEngine:
    """Plays a world with the real cores on the simulator's virtual clock.

    Raises: ConfigError: The rule needs a trainer's loss, or an attack is not played.
    """

    def __init__(self, parts: Parts) -> None:
        if parts.rule.needs_trainer:
            raise ConfigError(
                f"{parts.rule.name} asks the trainer for its loss, and the playground has none",
                "gossip demo runs it",
            )
        self._parts = parts
        UpdateBook(parts, tuple)  # checks the attacks

    def moments(self) -> Iterator[Moment]:
        """Play the world round by round, without end.

        Raises:
            ReplicasDiverged: Two peers have applied a round with different results.
            SimulationStuck: No round ends any more, as after the crash of all peers.
        """
        recorder = _Recorder(self._parts)
        swarm = _make_swarm(self._parts, recorder)
        while True:
            limit_s = swarm.now + ROUND_S_MAX
            swarm.deliveries_max = swarm.deliveries + EVENTS_MAX
            while not recorder.moments:
                if swarm.now > limit_s or not swarm.step():
                    raise SimulationStuck(
                        f"round {recorder.round_id} does not end\n{swarm.summary()}"
                    )
            yield recorder.moments.popleft()
            for host in swarm.hosts.values():  # a long run would fill the memory with them
                host.reports.clear()
                host.commits.clear()
                host.used_tokens.clear()
            swarm.past.clear()


@dataclass(slots=True)
class _RoundRecord:
    """Record of one round: for each peer its state after the round, when it had that, and the peers
    that it had in quarantine."""

    states: dict[PeerId, ModelState] = field(default_factory=dict)
    reached_s: dict[PeerId, float] = field(default_factory=dict)
    locked: dict[PeerId, frozenset[PeerId]] = field(default_factory=dict)
    used: dict[PeerId, int] = field(default_factory=dict)  # updates in what it has applied
    nbytes: int = 0
    lost: bool = False


class _Recorder(Observer):
    """Carries out the faults of a world, and makes its moments.

    Attributes:
        moments: Moments that were not yielded yet.
        round_id: The round whose moment comes next.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._rolling = parts, parts.topology.rolling
        self.moments: deque[Moment] = deque()
        self.round_id = 0
        self._swarm: Swarm[Peer] | None = None
        self._records: defaultdict[int, _RoundRecord] = defaultdict(_RoundRecord)
        self._next: dict[PeerId, int] = {}  # the next round of each peer that takes part
        self._last: list[ModelState] = []
        self._nbytes = self._updates = 0
        mishaps = parts.mishaps
        self._blows: list[Blow] = [*mishaps.crashes, *mishaps.restarts, *mishaps.hangs]
        self._kept_away: set[PeerId] = set()  # by faults
        self._replicas: dict[int, ModelState] = {}

    def begin(self, swarm: Swarm[Peer], initial: ModelState) -> None:
        """Observe a swarm before its first event."""
        self._swarm, self._last = swarm, [initial] * self._parts.peers
        self._next = dict.fromkeys(swarm.hosts, 0)
        swarm.hooks.append(self)
        for fault in self._blows:
            if fault.at_s is not None:
                swarm.at(fault.at_s, partial(self._strike, fault))
        for peer in range(self._parts.peers):
            self._await_change(peer, 0.0)

    @property
    def swarm(self) -> Swarm[Peer]:
        assert self._swarm is not None
        return self._swarm

    def members(self) -> list[PeerId]:
        """Return the running peers that have the state of the swarm."""
        return [peer for peer in self.swarm.up if peer in self._next]

    def slowness(self, peer: PeerId) -> float:
        """Return the factor on the time of the peer's computations."""
        slow = self._parts.mishaps.slow
        return prod(
            [each.factor for each in slow if each.peer == peer and each.is_on(self.swarm.now)]
        )

    # --- observations -----------------------------------------------------------------------------

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        if moment != "on_effect":
            return ()
        if kind is events.StartRound:
            return (self._on_start_round,)
        if kind is events.Report:
            return (self._on_report,)
        return (self._on_send,) if kind in BULK_MESSAGES else ()

    def on_crash(self, swarm: Any, peer: PeerId) -> None:
        self._next.pop(peer, None)

    def reached(
        self, peer: PeerId, state: ModelState, effect: events.Apply | events.Restore
    ) -> None:
        """Record that a peer has a new state."""
        applied = isinstance(effect, events.Apply)
        stop = effect.round_id + applied
        if self._rolling:
            self._compare(peer, state, stop - 1)
        locked = self._locked_by(peer)
        # A peer that skips rounds takes part in them, and one that returns in none before.
        for round_id in range(max(self.round_id, self._next.get(peer, stop - 1)), stop):
            record = self._records[round_id]
            record.states[peer], record.locked[peer] = state, locked
            record.reached_s[peer] = self.swarm.now
        if isinstance(effect, events.Apply) and effect.round_id >= self.round_id:
            record = self._records[effect.round_id]
            record.used[peer] = len(effect.contributors[0]) if effect.payloads else 0
            record.lost = record.lost or not effect.payloads
        self._next[peer] = stop
        self._close_rounds()

    def _on_start_round(self, swarm: Any, peer: PeerId, effect: events.StartRound) -> None:
        for fault in list(self._blows):
            due = fault.round is not None and fault.round <= effect.round_id
            if due and fault.peer == peer:
                self._blows.remove(fault)
                self._strike(fault)

    def _on_report(self, swarm: Any, peer: PeerId, effect: events.Report) -> None:
        # In gossip rounds a peer without an aggregate steps with its own update alone.
        if effect.event == "lost_round" and effect.fields["round"] >= self.round_id:
            self._records[effect.fields["round"]].lost = True

    def _on_send(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        assert isinstance(effect, Send)
        lane = swarm.hosts[peer].lanes.get(effect.peer)
        if effect.payload is not None and lane is not None and lane.up:
            round_id: int = effect.message.round_id  # type: ignore[union-attr]
            self._records[max(round_id, self.round_id)].nbytes += effect.payload.nbytes

    def _strike(self, fault: Blow) -> None:
        swarm, peer = self.swarm, fault.peer
        assert peer != "server"
        if isinstance(fault, Hang):
            swarm.at(swarm.now, partial(self._pause, peer, fault.for_s))
        elif swarm.hosts[peer].running:
            swarm.crash(peer)
            self._kept_away.add(peer)
            if isinstance(fault, Restart):
                swarm.at(swarm.now + fault.after_s, partial(self._let_return, peer))

    def _let_return(self, peer: PeerId) -> None:
        self._kept_away.remove(peer)
        if self._parts.availability.present(peer, self.swarm.now):
            self._start(peer)

    def _start(self, peer: PeerId) -> None:
        """Start a peer that is available, unless a fault keeps it away."""
        swarm = self.swarm
        if peer in self._kept_away:
            return
        if peer not in swarm.hosts:
            swarm.join(peer)
        elif not swarm.hosts[peer].running:
            swarm.restart(peer)

    def _await_change(self, peer: PeerId, now_s: float) -> None:
        at_s = self._parts.availability.next_change(peer, now_s)
        if at_s < inf:  # the clock of the swarm rounds it to nanoseconds
            self.swarm.at(at_s, partial(self._change, peer, at_s))

    def _change(self, peer: PeerId, now_s: float) -> None:
        """Let a peer arrive or leave."""
        host = self.swarm.hosts.get(peer)
        if self._parts.availability.present(peer, now_s):
            self._start(peer)
        elif host is not None and host.running:
            self.swarm.crash(peer)
        self._await_change(peer, now_s)

    def _pause(self, peer: PeerId, for_s: float) -> None:
        if self.swarm.hosts[peer].state == "up":
            self.swarm.pause_for(peer, for_s)

    # --- moments ----------------------------------------------------------------------------------

    def _locked_by(self, peer: PeerId) -> frozenset[PeerId]:
        core = self.swarm.inspections[peer]
        rounds = core.rolling.replicated if core.rolling is not None else core.gossip
        assert rounds is not None
        return rounds.trust.quarantined()

    def _compare(self, peer: PeerId, state: ModelState, round_id: int) -> None:
        """Compare a replica with the first one of the same round."""
        if self._replicas.setdefault(round_id, state) is not state:
            raise ReplicasDiverged(f"peer {peer} has another state than others after {round_id}")
        self._replicas.pop(round_id - ROUNDS_CHECKED, None)

    def _close_rounds(self) -> None:
        """Make the moments of all rounds that are over."""
        while self.round_id in self._records:
            # A peer that crashes at the start of the next round has taken part in this one.
            beyond = self._records[self.round_id].states
            behind = [peer for peer in self.members() if self._next[peer] <= self.round_id]
            if not beyond or len(behind) > (len(beyond) if self._rolling else 0):
                return
            present = sorted({*beyond, *behind})
            self.moments.append(self._moment(present))
            self.round_id += 1

    def _moment(self, present: list[PeerId]) -> Moment:
        record, n = self._records.pop(self.round_id), self._parts.peers
        for peer, state in record.states.items():
            self._last[peer] = state
        times = sorted(record.reached_s.values())
        self._nbytes += record.nbytes
        used = record.used.values()
        self._updates += max(used, default=0) if self._rolling else sum(used)
        if self._rolling:
            parameters = next(iter(record.states.values())).parameters.expand(n, -1)
        else:
            parameters = torch.stack([state.parameters for state in self._last])
        is_present = np.zeros(n, bool)
        is_present[present] = True
        task = self._parts.task
        return Moment(
            self.round_id + 1,
            times[(len(present) - 1) // 2],
            self._nbytes,
            self._updates * task.batch * task.local_steps,
            parameters,
            is_present,
            self._count_locked(record, present),
            record.lost,
        )

    def _count_locked(self, record: _RoundRecord, present: list[PeerId]) -> NDArray[np.int64]:
        honest = [peer for peer in present if peer not in self._parts.mishaps.byzantine]
        found = np.zeros(self._parts.peers, np.int64)
        if self._rolling:  # the table is a part of the replica
            found[sorted(next(iter(record.locked.values())))] = len(honest)
            return found
        for peer in honest:
            found[sorted(record.locked.get(peer, ()))] += 1
        return found


def _make_swarm(parts: Parts, recorder: _Recorder) -> Swarm[Peer]:
    """Return the swarm of a world before its first event: the peers that are available at its start
    are connected, and start together. The others join later, as newcomers of a run do."""
    topology = play.CachedTopology(parts.topology)
    everybody = np.arange(parts.peers)

    @lru_cache(maxsize=64)
    def seconds_of(round_id: int) -> NDArray[np.float64]:
        return parts.compute.seconds(everybody, round_id)

    states = StateTable(parts.task)
    shared = Swarmwide(
        states,
        UpdateBook(parts, recorder.members),
        RuleRunner(parts.rule, centered=not parts.topology.rolling),
        parts.task.batch * parts.task.local_steps,
        parts.settings.seed,
        lambda peer, round_id: float(seconds_of(round_id)[peer]) * recorder.slowness(peer),
        recorder.reached,
    )
    first = np.flatnonzero(parts.availability.present_peers(parts.peers, 0.0)).tolist()
    if not first:
        raise ConfigError("no peer is available at the start", "see availability")
    room = parts.peers if len(first) < parts.peers else 0
    roster = replace(parts.settings, peers=tuple(first), room=room)
    known = many_peers.Acquaintance({})

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        known.lives[peer] = incarnation
        settings = replace(roster, had_round=recorder.round_id)
        control, bulk = address(peer, incarnation)
        return many_peers.AcquaintedPeer(
            peer, incarnation, settings, topology, known=known, control=control, bulk=bulk
        )

    links = LinkModel(parts.links.delay_s, bytes_per_s=parts.links.bytes_per_s)
    swarm = Swarm(
        make_core,
        parts.peers,
        parts.settings.seed,
        Network(links),
        make_trainer=lambda peer, incarnation: LearningTrainer(peer, shared),
        encoded=False,
        start_spread_s=0.0,
        traced=False,
        absent=sorted(set(range(parts.peers)).difference(first)),
    )
    swarm.connect_all()
    recorder.begin(swarm, states.initial)
    return swarm
