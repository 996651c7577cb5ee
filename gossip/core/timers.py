"""Timers with unique tokens: a late or cancelled timer cannot be confused with a newer one."""

from __future__ import annotations

from typing import Generic, TypeVar

from .events import CancelTimer, SetTimer, Token

What = TypeVar("What")


class Timers(Generic[What]):
    """The pending timers of one core. ``What`` is plain data that identifies the due work.

    Attributes:
        firing: Token of the last timer that fired; it need not be cancelled.
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
        """Cancel a pending timer. None, and a timer that is not pending, have no effect. The timer
        that fires now is removed without an effect."""
        if token is None or self._pending.pop(token, None) is None or token == self.firing:
            return []
        return [CancelTimer(token)]

    def fire(self, token: Token) -> What | None:
        """Return the data of a timer; None if it was cancelled or has fired before."""
        pending = self._pending.pop(token, None)
        return None if pending is None else pending[1]

    def overdue_s(self, now: float, since: float = float("-inf")) -> float:
        """Return the lateness of the first pending timer, in seconds; 0.0 if none is late.

        A process that was stopped, or had no processor, notices it by this before a timer fires.

        Args:
            since: Lateness before this time is already accounted for.
        """
        first = min([at for at, _ in self._pending.values()], default=now)
        return max(0.0, now - (first if first > since else since))

    def __len__(self) -> int:
        return len(self._pending)
