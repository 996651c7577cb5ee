"""Who takes part: of the peers that are alive in a round, and not in quarantine, how many have an
update in it."""

from __future__ import annotations

from collections import deque

WINDOW = 20
"""Steps of a run."""
BOUND = 0.8
"""Of the peers alive, over a window: below it the run says so."""


class Participation:
    """What the rounds of a run have shown, each in its turn.

    Attributes:
        last: Who took part in the last one, and how many were alive; None before the first.
        least: The smallest mean of a window; None before the first window is over.
        is_low: Whether the last window was below ``BOUND``, since it was above.
    """

    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None
        self.least: float | None = None
        self.is_low = False
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._sum, self._rounds = 0.0, 0

    @property
    def mean(self) -> float | None:
        """Over all rounds; None before the first."""
        return self._sum / self._rounds if self._rounds else None

    @property
    def of_window(self) -> float | None:
        """Over the last ``WINDOW`` rounds; None before they are so many."""
        full = len(self._window) == WINDOW
        return sum(self._window) / WINDOW if full else None

    @property
    def without_anybody(self) -> int:
        """Rounds of the last ``WINDOW`` of which nobody was part."""
        return sum([not share for share in self._window])

    def observe(self, contributors: int, alive: int) -> bool:
        """A round was a step. Returns whether participation has fallen under the bound with it."""
        self.last = contributors, max(alive, contributors)
        share = contributors / max(1, alive, contributors)
        self._window.append(share)
        self._sum, self._rounds = self._sum + share, self._rounds + 1
        now = self.of_window
        if now is None:
            return False
        self.least = now if self.least is None else min(self.least, now)
        fell, self.is_low = now < BOUND and not self.is_low, now < BOUND
        return fell
