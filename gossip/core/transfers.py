"""Payloads that are on their way here: how much has come, and when the rest will be here if it goes on like that.

Whoever waits for a payload that moves does not wait for silence. One that trickles would take so long that it is as good as
silent: nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 0.5
"""The speed is that of the last window: one that began fast and trickles now is found out after it."""


@dataclass(slots=True)
class Transfer:
    """One payload. ``grew`` tells of its bytes as they come."""

    nbytes: int
    received: int
    at: float  # of the last growth
    _before: tuple[float, int] | None = None  # a moment before, and what had come by then
    _mark: tuple[float, int] = (0.0, 0)  # the moment that the next window is measured from

    @classmethod
    def begun(cls, nbytes: int, received: int, now: float) -> Transfer:
        return cls(nbytes, received, now, None, (now, received))

    def grew(self, received: int, now: float) -> None:
        if received <= self.received:
            return
        self.received, self.at = received, now
        if now - self._mark[0] >= WINDOW_S:
            self._before, self._mark = self._mark, (now, received)

    def ends_at(self, now: float) -> float:
        """When it will be complete, at the speed of the last window or two. As if it moved while it is younger than one."""
        since, had = self._before or self._mark
        elapsed = now - since
        if elapsed < WINDOW_S:
            return now
        came = self.received - had
        return now + (self.nbytes - self.received) * elapsed / came if came else float("inf")
