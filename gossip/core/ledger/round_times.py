"""Compute times of recent rounds, from which the deadline for the update of a slow peer is
computed.

Each update reports the time of all local steps of a round, and the commit repeats this time. A
Byzantine minority cannot move the median of a round beyond the honest times. The deadline need not
be part of the history, because the commit contains the number of samples of each update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median_low

from gossip.core.settings import MARGIN_US, ROUND_LATE, ROUND_TIMES


class RoundTimes:
    """Median compute times of the last rounds."""

    def __init__(self) -> None:
        self._medians: deque[int] = deque(maxlen=ROUND_TIMES)

    def observe(self, took_us: Iterable[int]) -> None:
        """Record a committed round. ``took_us``: time that each contributor has reported for all
        its steps; 0 if it has reported none."""
        if reported := [took for took in took_us if took]:
            self._medians.append(median_low(reported))

    @property
    def deadline_us(self) -> int:
        """Time after which an update must be ready, in microseconds; 0 if no round was observed."""
        if not self._medians:
            return 0
        usual = median_low(self._medians)
        return max(usual * ROUND_LATE[0] // ROUND_LATE[1], usual + MARGIN_US)
