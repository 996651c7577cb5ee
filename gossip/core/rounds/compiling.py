"""Peers with a trainer that compiles its model. These peers do not count as slow, so other peers
wait for them."""

from __future__ import annotations

from gossip.core.messages import PeerId
from gossip.core.settings import BUSY_S, COMPILING_MAX_S

from .credit import TokenBucket


class CompileTracker:
    """Peers that have reported that their trainer compiles its model."""

    def __init__(self) -> None:
        self._reported_at: dict[PeerId, float] = {}
        self.credit = TokenBucket()

    def record_compiling(self, peer: PeerId, now: float) -> None:
        """Record a report of ``peer`` that it compiles. Reports are repeated until the compilation
        ends."""
        self._reported_at[peer] = now

    def is_at_work(self, peer: PeerId, now: float) -> bool:
        """Whether ``peer`` has reported a compilation within the last ``BUSY_S`` seconds."""
        return now - self._reported_at.get(peer, float("-inf")) <= BUSY_S

    def most_s(self, now: float) -> float:
        """Return the longest wait for the update of a compiling peer, in seconds."""
        return COMPILING_MAX_S
