"""Who takes part: of the peers that are alive in a round, and not in quarantine, how many have an
update in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW = 20
"""Steps of a run."""
BOUND = 0.8
"""Of the peers alive, over a window: below it the run says so."""
ROUNDS_END = 2**40
"""No round has this number."""
GAPS_MAX = 32
"""So many gaps are known; of the oldest nobody tells any more."""


@dataclass(frozen=True, slots=True)
class LowWindow:
    """Participation has fallen under the bound. ``last``: the round with which it did.
    ``without_anybody``: rounds of the window of which nobody was part."""

    last: int
    mean: float
    without_anybody: int


class Participation:
    """What the rounds of a run have shown, each once, in the order in which they are told.

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
        self.begin_anew()

    def begin_anew(self) -> None:
        """Rounds are numbered from 0 on again."""
        self._newest = -1
        self._untold = [range(ROUNDS_END)]  # the last is of those to come

    @property
    def mean(self) -> float | None:
        """Over all rounds; None before the first."""
        return self._sum / self._rounds if self._rounds else None

    @property
    def of_window(self) -> float | None:
        """Over the last ``WINDOW`` rounds; None before they are so many."""
        full = len(self._window) == WINDOW
        return sum(self._window) / WINDOW if full else None

    def observe(self, rounds: range, contributors: int, alive: int) -> list[LowWindow]:
        """These rounds were steps, each with so many contributors of so many alive. Those that were
        told before do not count again. Returns where participation has fallen under the bound."""
        share, found = contributors / max(1, alive, contributors), list[LowWindow]()
        for new in self._take(rounds):
            if new[-1] > self._newest:
                self._newest, self.last = new[-1], (contributors, max(alive, contributors))
            self._sum, self._rounds = self._sum + share * len(new), self._rounds + len(new)
            for number in new[:WINDOW]:  # with more the window stays as it is
                found += self._slide(number, share)
        return found

    def _take(self, rounds: range) -> list[range]:
        """Those that nobody has told of before."""
        new, left = [], []
        for gap in self._untold:
            first, end = max(gap.start, rounds.start), min(gap.stop, rounds.stop)
            if first >= end:
                left.append(gap)
                continue
            new.append(range(first, end))
            left += [part for part in (range(gap.start, first), range(end, gap.stop)) if part]
        self._untold = left[-GAPS_MAX:]
        return new

    def _slide(self, number: int, share: float) -> list[LowWindow]:
        """The window moves on by a round."""
        self._window.append(share)
        mean, was_low = self.of_window, self.is_low
        if mean is None:
            return []
        self.least = mean if self.least is None else min(self.least, mean)
        self.is_low = mean < BOUND
        nobody = sum([not each for each in self._window])
        return [LowWindow(number, mean, nobody)] if self.is_low and not was_low else []
