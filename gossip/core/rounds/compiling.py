"""Peers with a trainer that compiles. They are not slow, so the others wait for them."""

from __future__ import annotations

from gossip.core.messages import PeerId
from gossip.core.settings import BUSY_S, COMPILING_MAX_S

from .credit import TokenBucket


class CompileTracker:
    """Peers that report that their trainer compiles now."""

    def __init__(self) -> None:
        self._reported_at: dict[PeerId, float] = {}
        self.credit = TokenBucket()

    def record_compiling(self, peer: PeerId, now: float) -> None:
        """Record that ``peer`` compiles. It reports again while it does."""
        self._reported_at[peer] = now

    def is_at_work(self, peer: PeerId, now: float) -> bool:
        """Whether ``peer`` has reported within ``BUSY_S`` that it compiles."""
        return now - self._reported_at.get(peer, float("-inf")) <= BUSY_S

    def most_s(self, now: float) -> float:
        """Return the longest time to wait for a peer that may never send, in seconds."""
        return COMPILING_MAX_S
