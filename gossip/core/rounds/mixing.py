"""Strength of mixing: the fraction by which a peer moves towards the parameters of other peers.
This fraction is raised when the replicas are too far apart."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gossip.core.messages import PeerId
from gossip.core.settings import CALM_SHARE, GossipSettings

from .sketch import ConsensusDistance, Sketch, consensus, read_sketch


@dataclass(eq=False)
class MixingController:
    """Latest sketch of each peer, consensus distance, and strength of mixing."""

    local: PeerId
    settings: GossipSettings
    f: int

    def __post_init__(self) -> None:
        self.consensus: ConsensusDistance | None = None
        """Consensus distance at the last exchange of parameters; None while unknown."""
        self.raised = False
        """Whether the strength of mixing is raised, because the replicas are too far apart."""
        self._sketches: dict[PeerId, tuple[int, Sketch]] = {}

    def is_due(self, round_id: int) -> bool:
        """Whether parameters are exchanged in ``round_id``: every ``mix_every`` rounds, for the
        first time in round ``mix_every - 1``."""
        return round_id % self.settings.mix_every == self.settings.mix_every - 1

    def learn(self, peer: PeerId, round_id: int, packed: bytes) -> None:
        """Record the sketch of ``peer``, unless the bytes are invalid."""
        sketch, known = read_sketch(packed), self._sketches.get(peer)
        if sketch is not None and (known is None or known[0] <= round_id):
            self._sketches[peer] = (round_id, sketch)

    def forget(self, is_gone: Callable[[PeerId], bool]) -> None:
        for peer in [peer for peer in self._sketches if peer != self.local and is_gone(peer)]:
            del self._sketches[peer]

    def measure(self, round_id: int, barred: Collection[PeerId]) -> None:
        """Update ``consensus`` and ``raised`` from the sketches of the last two exchanges. Sketches
        of ``barred`` peers are ignored."""
        own = self._sketches.get(self.local)
        if own is None:
            return
        oldest = round_id - 2 * self.settings.mix_every
        recent = [
            sketch
            for peer, (at, sketch) in sorted(self._sketches.items())
            if at > oldest and len(sketch) == len(own[1]) and peer not in barred
        ]
        found = consensus(recent, min(max(0, self.f - len(barred)), (len(recent) - 1) // 2))
        if found is not None:
            self.consensus = found
            bound = self.settings.consensus_bound
            self.raised = found.ratio > (CALM_SHARE * bound if self.raised else bound)

    def scale(self, others: int) -> float:
        """Return the factor by which the mixed difference is multiplied. The rule has computed this
        difference from the parameters of ``others`` other peers.

        With k = ``others``, the factor is at most k/(k+1). So the local parameters have a weight of
        at least 1/(k+1), even if the rule (for example Krum) gave them no weight.
        """
        most = others / (others + 1)
        return most if self.raised else min(self.settings.mixing, most)
