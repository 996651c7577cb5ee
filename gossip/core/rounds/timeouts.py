"""How long to wait for the others: learnt from how long they took, never from a ladder of settings.

A grace is the time that stragglers get once enough have answered. It follows the median of what was
seen, plus a multiple of the median absolute deviation: a few very late answers move neither.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

ENOUGH = 8
"""Observations below which nothing is known, and the cap holds."""

MAD_SCALE = 1.4826
"""Makes the median absolute deviation estimate the standard deviation of normal noise."""

ROUND_FACTOR = 3.0
ROUND_FLOOR_S = 1.0


class RecentMedian:
    """The last ``window`` numbers, kept sorted as they come, so that asking costs nothing."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if len(self._order) == self._window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)

    def __len__(self) -> int:
        return len(self._order)

    def median(self) -> float:
        """Return the median of at least one number: the upper one of an even count, because waiting
        a little too long costs less."""
        return self._sorted[len(self._sorted) // 2]

    def reach(self) -> float:
        """Return the distance from the median to the value farthest from it: never less than
        ``deviation``, and computed at once."""
        center = self.median()
        return max(self._sorted[-1] - center, center - self._sorted[0])

    def deviation(self) -> float:
        """The median absolute deviation from the median, not scaled."""
        center = self.median()
        return sorted([abs(value - center) for value in self._sorted])[len(self._sorted) // 2]


class Deadline:
    """Graces and round timeouts from what was observed.

    Args:
        mads: k in median + k * MAD: larger waits longer for stragglers.
        floor_s: Least grace, two round trips of the network.
        cap_s: Most that is ever waited, for stragglers and for a whole round;
            also while too little is known.
        window: Observations that count.
    """

    def __init__(self, mads: float, floor_s: float, cap_s: float, window: int = 64) -> None:
        self._mads, self._floor_s, self._cap_s = mads, floor_s, cap_s
        self._lags = RecentMedian(window)
        self._rounds = RecentMedian(window)
        self._grace_s: float | None = None

    @property
    def floor_s(self) -> float:
        return self._floor_s

    @floor_s.setter
    def floor_s(self, seconds: float) -> None:
        self._floor_s, self._grace_s = seconds, None

    @property
    def cap_s(self) -> float:
        """The most that is ever waited."""
        return self._cap_s

    def typical_round_s(self) -> float:
        """The median of the last rounds; 0.0 while nothing is known."""
        return self._rounds.median() if len(self._rounds) else 0.0

    def observe(self, lag_s: float) -> None:
        """An answer came ``lag_s`` after the first one (or after our own): feeds ``grace_s``."""
        self._lags.add(max(0.0, lag_s))
        self._grace_s = None

    def observe_round(self, duration_s: float) -> None:
        """A round took this long from its begin to its end: feeds ``round_timeout_s``."""
        self._rounds.add(max(0.0, duration_s))

    def grace_s(self) -> float:
        """How long stragglers may take: clamp(median + mads * MAD, floor, cap); the cap while fewer
        than 8 were seen."""
        if self._grace_s is None:
            if len(self._lags) < ENOUGH:
                self._grace_s = self._cap_s
            else:
                median, scale = self._lags.median(), self._mads * MAD_SCALE
                # Most often all came so soon that the floor holds,
                # and then the deviation need not be known.
                at_floor = median + scale * self._lags.reach() <= self._floor_s
                adaptive = self._floor_s if at_floor else median + scale * self._lags.deviation()
                self._grace_s = min(max(adaptive, self._floor_s), self._cap_s)
        return self._grace_s

    def round_timeout_s(self) -> float:
        """How long a server may take before its successor is tried:
        clamp(3 * median round, 1 s, cap)."""
        if len(self._rounds) < ENOUGH:
            return self._cap_s
        return min(max(ROUND_FACTOR * self._rounds.median(), ROUND_FLOOR_S), self._cap_s)
