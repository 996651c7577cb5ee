"""Compute times of recent rounds, which give a slow peer the deadline for its update.

Updates report the time of all local steps of a round, and commits repeat it. A Byzantine minority
does not move the median of a round. The deadline is a local decision and no part of the history:
the commit has the number of samples of each update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median_low

from .pace import MARGIN_US

KEPT = 3
"""Number of rounds. A single round in which all peers were delayed, as by an evaluation, does not
count."""
LATE = 11, 10
"""Deadline as a fraction of the median. A peer that is slower than the median by less completes all
its steps."""


class RoundTimes:
    """Medians of the last rounds."""

    def __init__(self) -> None:
        self._medians: deque[int] = deque(maxlen=KEPT)

    def observe(self, took_us: Iterable[int]) -> None:
        """Record a committed round. ``took_us``: reported time of each contributor for all its
        steps; 0: none."""
        if reported := [took for took in took_us if took]:
            self._medians.append(median_low(reported))

    @property
    def deadline_us(self) -> int:
        """Time after which an update must be ready, in microseconds; 0 if no round was observed."""
        if not self._medians:
            return 0
        usual = median_low(self._medians)
        return max(usual * LATE[0] // LATE[1], usual + MARGIN_US)
