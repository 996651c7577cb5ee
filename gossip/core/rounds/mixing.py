"""How far to move towards the others' parameters:
more when the replicas have come too far apart."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gossip.core.messages import PeerId
from gossip.core.settings import GossipSettings

from .sketch import ConsensusDistance, Sketch, consensus, read_sketch

CALM = 0.5
"""Mixing that was raised goes back when the consensus distance has fallen to this
part of its bound."""


class MixingController:
    """Keeps everybody's latest sketch, measures the consensus distance,
    and says how strongly to mix."""

    def __init__(self, local: PeerId, settings: GossipSettings, f: int) -> None:
        self.local, self.settings, self.f = local, settings, f
        self.consensus: ConsensusDistance | None = None
        """At the last round that mixed, None while unknown."""
        self.raised = False
        """Whether mixing is raised because the replicas are too far apart."""
        self._sketches: dict[PeerId, tuple[int, Sketch]] = {}

    def is_due(self, round_id: int) -> bool:
        """Whether parameters are exchanged in that round: the last of every ``mix_every``."""
        return round_id % self.settings.mix_every == self.settings.mix_every - 1

    def learn(self, peer: PeerId, round_id: int, packed: bytes) -> None:
        """Notes a peer's sketch. Junk is passed over: it says nothing about the parameters."""
        sketch, known = read_sketch(packed), self._sketches.get(peer)
        if sketch is not None and (known is None or known[0] <= round_id):
            self._sketches[peer] = (round_id, sketch)

    def forget(self, is_gone: Callable[[PeerId], bool]) -> None:
        for peer in [peer for peer in self._sketches if peer != self.local and is_gone(peer)]:
            del self._sketches[peer]

    def measure(self, round_id: int, barred: Collection[PeerId]) -> None:
        """Updates ``consensus`` and ``raised`` from the sketches of the last two exchanges; those
        of ``barred`` do not count."""
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
            self.raised = found.ratio > (CALM * bound if self.raised else bound)

    def scale(self, others: int) -> float:
        """The factor on the rule's mixed difference,
        when the parameters of ``others`` peers went into it.

        At most k/(k+1): whatever weight the rule gave ourselves (Krum: none),
        at least 1/(k+1) is left to us.
        """
        most = others / (others + 1)
        return most if self.raised else min(self.settings.mixing, most)
