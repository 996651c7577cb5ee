"""Rate limit of events by kind and peer: thousands of malformed messages must not fill a disk."""

from __future__ import annotations

from dataclasses import dataclass

BURST = 50
PER_S = 10.0
TELL_EVERY_S = 1.0


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float
    held: int = 0
    tell_at: float = 0.0


class EventRateLimiter:
    """Allows a burst of ``BURST`` events of a kind about a peer, then ``PER_S`` a second, and
    counts the others."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, int], _Bucket] = {}
        self._flooded: set[tuple[str, int]] = set()

    def lets(self, kind: str, whom: int, now: float) -> bool:
        """Whether the event may be written."""
        bucket = self._buckets.setdefault((kind, whom), _Bucket(BURST, now))
        bucket.left = min(float(BURST), bucket.left + (now - bucket.at) * PER_S)
        bucket.at = now
        if bucket.left >= 1:
            bucket.left -= 1
            return True
        if not bucket.held:
            bucket.tell_at = now + TELL_EVERY_S
            self._flooded.add((kind, whom))
        bucket.held += 1
        return False

    def held(self, now: float, all_of_them: bool = False) -> list[tuple[str, int, int]]:
        """Return kind, peer and number of suppressed events with a due report."""
        due = []
        for key in sorted(self._flooded):
            bucket = self._buckets[key]
            if all_of_them or now >= bucket.tell_at:
                due.append((*key, bucket.held))
                bucket.held = 0
                self._flooded.discard(key)
        return due
