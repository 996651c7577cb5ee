"""Rate limit for the requests of each sender to a join server."""

from __future__ import annotations

SENDERS_MAX = 1024


class SenderRateLimiter:
    """Rate limit for each sender. A request beyond the limit is refused.

    Args:
        per_s: Units per second for each sender. The address of its host identifies a sender.
        at_once: Units that a sender may use at once after a pause.
    """

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        # Units left, and the time of the last request, by sender. The sender with the oldest last
        # request comes first.
        self._left: dict[str, tuple[float, float]] = {}

    def consume_units(self, sender: str, units: float, now: float) -> bool:
        """Consume ``units`` of the sender, if that many are left. Return whether they were."""
        left, since = self._left.pop(sender, (self._at_once, now))
        left = min(self._at_once, left + (now - since) * self._per_s)
        granted = units <= left
        self._left[sender] = (left - units if granted else left, now)
        if len(self._left) > SENDERS_MAX:
            del self._left[next(iter(self._left))]
        return granted
