"""Creates the moments of the exact engine from the states of trainers and cores."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gossip.core import BULK_MESSAGES, Effect, Peer, PeerId, Send, events
from gossip.errors import ReplicasDiverged
from gossip_lab.simulation import Observer, Swarm, Watcher

from .moments import Moment
from .parts import Parts
from .states import ModelState

ROUNDS_CHECKED = 64
"""Number of rounds for which a replica is stored, to compare the replicas of late peers with it."""


@dataclass(slots=True)
class RoundRecord:
    """Record of one round. The keys are peers. ``states`` has the state after the round,
    ``reached_s`` the time at which a peer reached it, and ``locked`` the peers in quarantine."""

    states: dict[PeerId, ModelState] = field(default_factory=dict)
    reached_s: dict[PeerId, float] = field(default_factory=dict)
    locked: dict[PeerId, frozenset[PeerId]] = field(default_factory=dict)
    used: dict[PeerId, int] = field(default_factory=dict)  # number of updates in the applied result
    nbytes: int = 0
    lost: bool = False
    lowered: bool = False


class Recorder(Observer):
    """Records the state of a world after each round.

    Attributes:
        moments: Moments that the engine has not yielded yet.
        round_id: Round of the next moment.
        swarm: The observed swarm, from ``begin`` on.
    """

    swarm: Swarm[Peer]

    def __init__(self, parts: Parts) -> None:
        self._parts, self._rolling = parts, parts.topology.rolling
        self.moments: deque[Moment] = deque()
        self.round_id = 0
        self._records: defaultdict[int, RoundRecord] = defaultdict(RoundRecord)
        self._next: dict[PeerId, int] = {}  # next round of each participating peer
        self._last: list[ModelState] = []
        self._latest: dict[PeerId, ModelState] = {}
        self._nbytes = self._updates = 0
        self._replicas: dict[int, ModelState] = {}

    def begin(self, swarm: Swarm[Peer], initial: ModelState) -> None:
        """Observe a swarm. Call this before its first event."""
        self.swarm, self._last = swarm, [initial] * self._parts.peers
        self._next = dict.fromkeys(swarm.hosts, 0)
        swarm.hooks.append(self)

    # --- observations -----------------------------------------------------------------------------

    def watchers(self, moment: str, kind: type) -> tuple[Watcher, ...]:
        if moment != "on_effect":
            return ()
        if kind is events.Report:
            return (self._on_report,)
        if kind is events.Aggregate and not self._rolling:
            return (self._on_aggregate,)
        return (self._on_send,) if kind in BULK_MESSAGES else ()

    def on_crash(self, swarm: Any, peer: PeerId) -> None:
        self._next.pop(peer, None)

    def record_state(
        self, peer: PeerId, state: ModelState, effect: events.Apply | events.Restore
    ) -> None:
        """Record that a peer has a new state."""
        applied = isinstance(effect, events.Apply)
        stop = effect.round_id + applied
        if self._rolling:
            self._compare(peer, state, stop - 1)
        locked = self._locked_by(peer)
        # If a peer skips rounds, it still takes part in them. In gossip rounds its state does not
        # change in them. A returning peer takes no part in rounds before its return.
        before = state if self._rolling else self._latest.get(peer, state)
        for round_id in range(max(self.round_id, self._next.get(peer, stop - 1)), stop):
            record = self._records[round_id]
            record.states[peer] = state if round_id == stop - 1 else before
            record.locked[peer], record.reached_s[peer] = locked, self.swarm.now
        self._latest[peer] = state
        if isinstance(effect, events.Apply) and effect.round_id >= self.round_id:
            record = self._records[effect.round_id]
            record.used[peer] = len(effect.contributors[0]) if effect.payloads else 0
        self._next[peer] = stop
        self._close_rounds()

    def _on_report(self, swarm: Any, peer: PeerId, effect: events.Report) -> None:
        # The round is lost, although in gossip rounds the peer still makes a step with its own
        # update.
        if effect.event == "lost_round" and effect.fields["round"] >= self.round_id:
            self._records[effect.fields["round"]].lost = True

    def _on_aggregate(self, swarm: Any, peer: PeerId, effect: events.Aggregate) -> None:
        if len(effect.rows) > 1 and effect.f < self._parts.settings.f:
            self._records[max(effect.round_id, self.round_id)].lowered = True

    def _on_send(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        assert isinstance(effect, Send)
        lane = swarm.hosts[peer].lanes.get(effect.peer)
        if effect.payload is not None and lane is not None and lane.up:
            round_id: int = effect.message.round_id  # type: ignore[union-attr]
            self._records[max(round_id, self.round_id)].nbytes += effect.payload.nbytes

    # --- moments ----------------------------------------------------------------------------------

    def _locked_by(self, peer: PeerId) -> frozenset[PeerId]:
        core = self.swarm.inspections[peer]
        rounds = core.rolling.replicated if core.rolling is not None else core.gossip
        assert rounds is not None
        return rounds.trust.quarantined()

    def _compare(self, peer: PeerId, state: ModelState, round_id: int) -> None:
        """Compare a replica with the first recorded replica of the same round."""
        if self._replicas.setdefault(round_id, state) is not state:
            raise ReplicasDiverged(
                f"after round {round_id}, peer {peer} and other peers have different states"
            )
        self._replicas.pop(round_id - ROUNDS_CHECKED, None)

    def _close_rounds(self) -> None:
        """Create the moments of the finished rounds."""
        while self.round_id in self._records:
            # A peer that has crashed since it applied this round still took part in it.
            beyond = self._records[self.round_id].states
            behind = [peer for peer in self.swarm.up if self._next.get(peer, inf) <= self.round_id]
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
            self._updates * task.samples,
            parameters,
            is_present,
            self._count_locked(record, present),
            record.lost,
            record.lowered,
        )

    def _count_locked(self, record: RoundRecord, present: list[PeerId]) -> NDArray[np.int64]:
        honest = [peer for peer in present if peer not in self._parts.mishaps.byzantine]
        found = np.zeros(self._parts.peers, np.int64)
        if self._rolling:  # all replicas have the same trust table
            for peer in next(iter(record.locked.values())):
                found[peer] = len(honest) - (peer in honest)  # a peer does not observe itself
            return found
        for peer in honest:
            found[sorted(record.locked.get(peer, ()))] += 1
        return found
