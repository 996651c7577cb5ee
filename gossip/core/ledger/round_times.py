"""How long a round takes most peers, by which a slow one knows when to send what it has.

Updates say how long all local steps of a round take their peer, and commits repeat it. The median
of a round is not moved by a minority that lies. What follows from it is a peer's own decision and
no part of the history: how many samples an update is on is in the commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median_low

from .pace import MARGIN_US

KEPT = 3
"""Rounds: a single one in which all were held up, as by an evaluation, is passed over."""
LATE = 11, 10
"""Deadline as a fraction of the median: a peer that is slower than most by less completes all its
steps."""


class RoundTimes:
    """The last rounds' medians."""

    def __init__(self) -> None:
        self._medians: deque[int] = deque(maxlen=KEPT)

    def observe(self, took_us: Iterable[int]) -> None:
        """A round was committed; ``took_us``: how long each contributor takes for all its steps, as
        it says; 0: it does not say."""
        if told := [took for took in took_us if took]:
            self._medians.append(median_low(told))

    @property
    def deadline_us(self) -> int:
        """After so long a peer's update is to be ready. 0: nothing is known yet."""
        if not self._medians:
            return 0
        usual = median_low(self._medians)
        return max(usual * LATE[0] // LATE[1], usual + MARGIN_US)
