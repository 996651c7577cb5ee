"""Timers whose tokens are never used again, so that a late or cancelled one cannot
hit its successor."""

from __future__ import annotations

from typing import Generic, TypeVar

from .events import CancelTimer, SetTimer, Token

What = TypeVar("What")


class Timers(Generic[What]):
    """Hands out tokens and remembers what each stands for until it fires or is cancelled.

    One core has one ``Timers``. ``What`` is plain data that says what to do when the time has come.

    Attributes:
        firing: The token of the event that is being handled, if that is a timer: it is spent, and
            there is nothing to cancel.
    """

    def __init__(self) -> None:
        self.firing: Token | None = None
        self._next = 1
        self._pending: dict[Token, tuple[float, What]] = {}

    def note_firing(self, token: Token | None) -> None:
        """An event is handled now: the timer of that token, or none."""
        self.firing = token

    def set(self, at: float, what: What) -> SetTimer:
        token = self._next
        self._next += 1
        self._pending[token] = (at, what)
        return SetTimer(token, at)

    def cancel(self, token: Token | None) -> list[CancelTimer]:
        """Cancels if it is still pending; asking again, or with None, does nothing. One that fires
        just now is only forgotten."""
        if token is None or self._pending.pop(token, None) is None or token == self.firing:
            return []
        return [CancelTimer(token)]

    def fire(self, token: Token) -> What | None:
        """Return what the timer is for. None if it was cancelled or has fired before."""
        pending = self._pending.pop(token, None)
        return None if pending is None else pending[1]

    def overdue_s(self, now: float, since: float = float("-inf")) -> float:
        """By how much the one that should have fired first is late, seconds; 0.0 when none is.

        Whoever was stopped, or had no processor for a while,
        finds out by this before the first of them fires.

        Args:
            since: Time before that is accounted for already, and does not count.
        """
        first = min([at for at, _ in self._pending.values()], default=now)
        return max(0.0, now - (first if first > since else since))

    def __len__(self) -> int:
        return len(self._pending)
