"""Limits the rate of events by kind and peer, so that malformed messages cannot fill a disk."""

from __future__ import annotations

BURST = 50
PER_S = 10.0
TELL_EVERY_S = 1.0


class EventRateLimiter:
    """Limiter of events. For each kind of event and each peer, it allows a burst of ``BURST``
    events, and then ``PER_S`` events per second. It counts the suppressed events."""

    def __init__(self) -> None:
        # Number of events that are allowed now, and the time when it was computed; the key is the
        # kind and the peer.
        self._left: dict[tuple[str, int], tuple[float, float]] = {}
        # Number of suppressed events, and the time of the next report about them; the key is the
        # kind and the peer.
        self._held: dict[tuple[str, int], tuple[int, float]] = {}

    def lets(self, kind: str, whom: int, now: float) -> bool:
        """Whether the event may be written."""
        key = kind, whom
        left, at = self._left.get(key, (BURST, now))
        left = min(float(BURST), left + (now - at) * PER_S)
        is_allowed = left >= 1
        self._left[key] = left - is_allowed, now
        if not is_allowed:
            count, due = self._held.get(key, (0, now + TELL_EVERY_S))
            self._held[key] = count + 1, due
        return is_allowed

    def held(self, now: float, all_of_them: bool = False) -> list[tuple[str, int, int]]:
        """Return the suppressed events that must be reported now: kind, peer and number of
        events."""
        due = sorted(key for key, (_, at) in self._held.items() if all_of_them or now >= at)
        return [(*key, self._held.pop(key)[0]) for key in due]
