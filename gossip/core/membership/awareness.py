"""Local health (Lifeguard): a peer that misses many replies slows its own failure detector."""

from __future__ import annotations


class Awareness:
    """Local health score, from 0 (healthy) to ``maximum - 1``. The intervals and timeouts of this
    peer's probes are multiplied by ``score + 1``."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.score = 0

    def worsen(self, by: int = 1) -> None:
        self.score = min(self.maximum - 1, self.score + by)

    def improve(self) -> None:
        self.score = max(0, self.score - 1)

    def scale(self, duration_s: float) -> float:
        return duration_s * (self.score + 1)
