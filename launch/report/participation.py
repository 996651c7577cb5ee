"""Participation in rounds: of the peers that are alive and not in quarantine, how many have an
update in the round."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gossip.observe import ROUNDS_END

WINDOW = 20
"""Steps of a run."""
BOUND = 0.8
"""Share of the peers alive, over a window, below which the run prints a warning."""
GAPS_MAX = 32
"""Maximum number of gaps in the reported rounds that are kept. No peer reports rounds of the oldest
gap any more."""


@dataclass(frozen=True, slots=True)
class LowWindow:
    """Participation has fallen under the bound. ``first``, ``last``: rounds of the window.
    ``without_anybody``: rounds of the window of which nobody was part."""

    first: int
    last: int
    mean: float
    without_anybody: int


class Participation:
    """Participation in the rounds of a run. Each round counts once, in the order of the reports.

    Attributes:
        last: Contributors of the last round, and peers that were alive; None before the first.
        least: The smallest mean of a window; None before the first window is over.
        is_low: Whether the last window was below ``BOUND``.
    """

    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None
        self.least: float | None = None
        self.is_low = False
        self._sum, self._rounds = 0.0, 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Rounds are numbered from 0 on again, and no window has some of both lives of the run."""
        self._newest, self.is_low = -1, False
        self._window: list[tuple[int, float]] = []  # the newest rounds, and the share of each
        self._unreported = [range(ROUNDS_END)]  # the last is of those to come

    @property
    def mean(self) -> float | None:
        """Over all rounds; None before the first."""
        return self._sum / self._rounds if self._rounds else None

    @property
    def of_window(self) -> float | None:
        """Over the last ``WINDOW`` rounds; None before they are so many."""
        full = len(self._window) == WINDOW
        return sum([share for _, share in self._window]) / WINDOW if full else None

    def observe(self, rounds: range, contributors: int, alive: int) -> list[LowWindow]:
        """These rounds were steps, each with so many contributors of so many alive. Those that were
        told before do not count again. Returns where participation has fallen under the bound."""
        share, found = contributors / max(1, alive, contributors), list[LowWindow]()
        for new in self._pop_unreported(rounds):
            if new[-1] > self._newest:
                self._newest, self.last = new[-1], (contributors, max(alive, contributors))
            self._sum, self._rounds = self._sum + share * len(new), self._rounds + len(new)
            # with those between them the mean stays as it is
            for number in (*new[:WINDOW], *new[WINDOW:][-WINDOW:]):
                found += self._slide(number, share)
        return found

    def _pop_unreported(self, rounds: range) -> list[range]:
        """Those that nobody has told of before."""
        new, left = [], []
        for gap in self._unreported:
            first, end = max(gap.start, rounds.start), min(gap.stop, rounds.stop)
            if first >= end:
                left.append(gap)
                continue
            new.append(range(first, end))
            left += [part for part in (range(gap.start, first), range(end, gap.stop)) if part]
        self._unreported = left[-GAPS_MAX:]
        return new

    def _slide(self, number: int, share: float) -> list[LowWindow]:
        """The window takes in a round, and gives up its oldest. One that is told of late may be
        older than all."""
        insort(self._window, (number, share))
        del self._window[:-WINDOW]
        mean, was_low = self.of_window, self.is_low
        if mean is None:
            return []
        self.least = mean if self.least is None else min(self.least, mean)
        self.is_low = mean < BOUND
        if was_low or not self.is_low:
            return []
        nobody = sum([not each for _, each in self._window])
        return [LowWindow(self._window[0][0], self._window[-1][0], mean, nobody)]


def low_influence(shares: Mapping[Any, float]) -> list[str]:
    """Lines about peers whose updates the rule gives little weight, without evidence against them.

    Args:
        shares: Peer -> mean weight of 20 updates, in multiples of an equal weight.
    """
    return [
        f"! the updates of peer {peer} counted for {share:.0%} of an equal weight over 20 rounds, "
        "without evidence against it: its data may be rare; see docs/protection.md"
        for peer, share in shares.items()
    ]
