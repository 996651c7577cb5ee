"""Plans of gossip rounds. Every peer can compute the plan of every other peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gossip.core.latest import Latest
from gossip.core.messages import PeerId
from gossip.core.settings import PLANS_KEPT, CoreSettings
from gossip.core.view import MembersView
from gossip.topologies import Plan, Roster


class GossipTopology(Protocol):
    def __call__(self, roster: Roster, round_id: int, seed: int) -> Plan: ...


@dataclass(eq=False)
class PlanCache:
    """Plans of recent rounds, and the peers for which they are made."""

    local: PeerId
    settings: CoreSettings
    topology: GossipTopology
    view: MembersView

    def __post_init__(self) -> None:
        self.first = tuple(sorted(self.settings.peers))
        # all peers, including those that joined later; and the subset of peers that are not gone
        self._everybody = self._here = self.first
        self._version = -1  # version of the view from which these two tuples were computed
        self._plans: Latest[tuple[int, tuple[PeerId, ...]], Plan] = Latest(PLANS_KEPT)

    def members(self) -> tuple[PeerId, ...]:
        """Return the peers that are neither dead nor have left."""
        if self._version != self.view.version:
            self._version, is_gone = self.view.version, self.view.is_gone
            if self.settings.room:
                self._everybody = tuple(sorted({*self.first, self.local, *self.view.met()}))
            self._here = tuple(
                [peer for peer in self._everybody if peer == self.local or not is_gone(peer)]
            )
        return self._here

    def plan(self, round_id: int, peers: tuple[PeerId, ...]) -> Plan:
        key = (round_id, peers)
        if key not in self._plans:
            self._plans[key] = self.topology(
                Roster(peers, self.settings.lineage), round_id, self.settings.seed
            )
        return self._plans[key]

    def sources(self, round_id: int) -> tuple[PeerId, ...]:
        """Return the peers that push to the local peer in ``round_id``."""
        return self.plan(round_id, self.members()).sources(self.local)

    def targets(
        self, sender: PeerId, round_id: int, peers: tuple[PeerId, ...]
    ) -> tuple[PeerId, ...]:
        """Return the peers to which ``sender`` pushes, by the plan for ``peers``."""
        pushes = self.plan(round_id, peers).pushes
        assert pushes is not None
        return pushes.get(sender, ())

    def is_planned(self, sender: PeerId, round_id: int) -> bool:
        """Whether ``sender`` pushes to the local peer by a plan. When a peer dies, the views of the
        peers differ for a moment, so the plans with the dead peers are accepted too."""
        rosters = dict.fromkeys((self.members(), self._everybody, self.first))
        return any(self.local in self.targets(sender, round_id, peers) for peers in rosters)

    def __len__(self) -> int:
        return len(self._plans)
