"""Participation in rounds: the share of the live peers outside quarantine that have an update in
the round."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any

from gossip.observe import ROUNDS_END

from .words import counted

WINDOW = 20
"""Length of a window, in rounds."""
BOUND = 0.8
"""Mean participation of a window below which the run prints a warning."""
GAPS_MAX = 32
"""Maximum number of gaps between reported rounds that are kept. Late reports about rounds in older
gaps are ignored."""


class Participation:
    """Participation in the rounds of a run. Each round counts once, in the order of the reports.

    Attributes:
        last: Number of contributors to the last round, and of live peers; None before the first
            round.
        least: Smallest mean of a window; None before the first window is full.
        is_low: Whether the mean of the last window was below ``BOUND``.
    """

    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None
        self.least: float | None = None
        self.is_low = False
        self._sum, self._rounds = 0.0, 0
        self._newest = -1
        self._window: list[tuple[int, float]] = []  # (round, share) of the newest rounds
        self._unreported = [range(ROUNDS_END)]  # the last range contains future rounds

    @property
    def mean(self) -> float | None:
        """Mean over all rounds; None before the first round."""
        return self._sum / self._rounds if self._rounds else None

    @property
    def of_window(self) -> float | None:
        """Mean over the last ``WINDOW`` rounds; None if there were fewer."""
        full = len(self._window) == WINDOW
        return sum([share for _, share in self._window]) / WINDOW if full else None

    def observe(self, rounds: range, contributors: int, alive: int) -> list[str]:
        """Record rounds with ``contributors`` of ``alive`` peers each. Return a warning about each
        window in which the participation fell below ``BOUND``. Rounds that were reported before are
        ignored."""
        share, warnings = contributors / max(1, alive, contributors), list[str]()
        for new in self._pop_unreported(rounds):
            if new[-1] > self._newest:
                self._newest, self.last = new[-1], (contributors, max(alive, contributors))
            self._sum, self._rounds = self._sum + share * len(new), self._rounds + len(new)
            # Further rounds between these do not change the mean of a window.
            for number in (*new[:WINDOW], *new[WINDOW:][-WINDOW:]):
                warnings += self._slide(number, share)
        return warnings

    def _pop_unreported(self, rounds: range) -> list[range]:
        """Remove and return the rounds that were not reported before."""
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

    def _slide(self, number: int, share: float) -> list[str]:
        """Add a round to the window, and drop the oldest round, which may be the added one if its
        report is late. Return the warning about the window, if it is due."""
        insort(self._window, (number, share))
        del self._window[:-WINDOW]
        mean, was_low = self.of_window, self.is_low
        if mean is None:
            return []
        self.least = mean if self.least is None else min(self.least, mean)
        self.is_low = mean < BOUND
        if was_low or not self.is_low:
            return []
        empty = sum([not each for _, each in self._window])
        why = (
            f"in {counted(empty, 'round')} no peer had an update that can be used: gradients were "
            "not finite (NaN), or scripts skipped the step"
            if empty
            else "the others were late: see gossip top; raise --round-timeout if steps or links "
            "are slow"
        )
        return [
            f"! only {mean:.0%} of the peers that are alive took part in the rounds "
            f"{self._window[0][0]} to {self._window[-1][0]}, on average (less than {BOUND:.0%}): "
            f"{why}"
        ]


def low_influence(shares: Mapping[Any, float]) -> list[str]:
    """Return lines about peers that have little weight although there is no evidence against them.

    Args:
        shares: Mean weight of 20 updates of each peer, in multiples of an equal weight.
    """
    return [
        f"! the updates of peer {peer} counted for {share:.0%} of an equal weight over 20 rounds, "
        "without evidence against it: its data may be rare; see docs/protection.md"
        for peer, share in shares.items()
    ]
