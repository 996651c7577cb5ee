"""Timers with unique tokens, so that a late or cancelled timer is never mistaken for a newer
timer."""

from __future__ import annotations

from typing import Generic, TypeVar

from .events import CancelTimer, SetTimer, Token

What = TypeVar("What")


class Timers(Generic[What]):
    """Pending timers of one core. ``What`` is the type of the data that identifies the work of a
    timer.

    Attributes:
        firing: Token of the timer that fired last. It needs no cancellation.
    """

    def __init__(self) -> None:
        self.firing: Token | None = None
        self._next = 1
        self._pending: dict[Token, tuple[float, What]] = {}

    def note_firing(self, token: Token) -> None:
        """Record the timer that fires now."""
        self.firing = token

    def set(self, at: float, what: What) -> SetTimer:
        token = self._next
        self._next += 1
        self._pending[token] = (at, what)
        return SetTimer(token, at)

    def cancel(self, token: Token | None) -> list[CancelTimer]:
        """Cancel a pending timer and return the effect. The list is empty if the token is None, or
        if the timer is not pending or is firing now."""
        if token is None or self._pending.pop(token, None) is None or token == self.firing:
            return []
        return [CancelTimer(token)]

    def fire(self, token: Token) -> What | None:
        """Return the data of a timer; None if the timer was cancelled or has already fired."""
        pending = self._pending.pop(token, None)
        return None if pending is None else pending[1]

    def overdue_s(self, now: float, since: float = float("-inf")) -> float:
        """Return how late the earliest pending timer is, in seconds; 0.0 if no timer is late.

        After a pause of the process or a lack of processor time, this shows the delay before the
        late timer fires.

        Args:
            since: Time up to which delays were already reported.
        """
        first = min([at for at, _ in self._pending.values()], default=now)
        return max(0.0, now - (first if first > since else since))

    def __len__(self) -> int:
        return len(self._pending)
