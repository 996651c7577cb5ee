"""Trainers that compile: that is not slowness, and the others wait for them."""

from __future__ import annotations

from gossip.core.messages import PeerId

from .arrivals import BUSY_S, WordCredit

COMPILING_MAX_S = 300.0
"""The most that is waited for one that says that it compiles: nobody can check it."""


class CompileTracker:
    """Peers that report that their trainer compiles now."""

    def __init__(self) -> None:
        self._told_at: dict[PeerId, float] = {}
        self.credit = WordCredit()

    def record_compiling(self, peer: PeerId, now: float) -> None:
        """``peer``, or this one, says so. It says it again while it compiles."""
        self._told_at[peer] = now

    def is_at_work(self, peer: PeerId, now: float) -> bool:
        """Whether it does, or did a moment ago."""
        return now - self._told_at.get(peer, float("-inf")) <= BUSY_S

    def most_s(self, now: float) -> float:
        """Return the longest time to wait for a peer in vain, in seconds."""
        return COMPILING_MAX_S
