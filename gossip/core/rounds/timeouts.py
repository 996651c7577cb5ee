"""Adaptive timeouts, computed from the observed lags of replies and durations of rounds.

The grace period is the wait for stragglers after enough replies have arrived. It is the median of
the observed lags plus a multiple of their median absolute deviation. A few very late replies change
neither the median nor the deviation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from gossip.core.settings import ESTIMATE_MIN, REPLY_S, USUAL_FACTOR

MAD_SCALE = 1.4826
"""Ratio of the standard deviation to the median absolute deviation for normal noise."""


class RecentMedian:
    """Median of the last ``window`` values. The values are stored in sorted order."""

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
        """Return the median; there must be at least one value. If the number of values is even,
        return the larger of the two middle values, because a wait that is slightly too long costs
        less than a wait that is too short."""
        return self._sorted[len(self._sorted) // 2]

    def reach(self) -> float:
        """Return the distance from the median to the farthest value, in constant time. This
        distance is an upper bound of ``deviation``."""
        center = self.median()
        return max(self._sorted[-1] - center, center - self._sorted[0])

    def deviation(self) -> float:
        """Return the median absolute deviation from the median, without ``MAD_SCALE``."""
        center = self.median()
        return sorted([abs(value - center) for value in self._sorted])[len(self._sorted) // 2]


class Deadline:
    """Grace periods and round timeouts, computed from observed times.

    Args:
        mads: Factor k in median + k * MAD. With a larger k the wait for stragglers is longer.
        floor_s: Shortest grace period, two round trips of the network.
        cap_s: Longest wait for stragglers and longest timeout of a round. It is also used while
            there are too few observations.
        window: Number of the latest observations that are used.
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
        """Longest wait in seconds."""
        return self._cap_s

    def typical_round_s(self) -> float:
        """Return the median duration of the last rounds in seconds; 0.0 before the first round."""
        return self._rounds.median() if len(self._rounds) else 0.0

    def observe(self, lag_s: float) -> None:
        """Record the lag of a reply, from which ``grace_s`` is computed. The lag is measured from
        the first reply, or from the local update."""
        self._lags.add(max(0.0, lag_s))
        self._grace_s = None

    def observe_round(self, duration_s: float) -> None:
        """Record the duration of a round, from which ``round_timeout_s`` is computed."""
        self._rounds.add(max(0.0, duration_s))

    def grace_s(self) -> float:
        """Return the wait for stragglers in seconds: clamp(median + mads * MAD, floor, cap). With
        fewer than 8 observations, return the cap."""
        if self._grace_s is None:
            if len(self._lags) < ESTIMATE_MIN:
                self._grace_s = self._cap_s
            else:
                median, scale = self._lags.median(), self._mads * MAD_SCALE
                # Usually all replies arrive so early that the result is the floor. In this case the
                # deviation, which is costly to compute, is not needed.
                at_floor = median + scale * self._lags.reach() <= self._floor_s
                adaptive = self._floor_s if at_floor else median + scale * self._lags.deviation()
                self._grace_s = min(max(adaptive, self._floor_s), self._cap_s)
        return self._grace_s

    def round_timeout_s(self) -> float:
        """Return the timeout of a server in seconds: clamp(3 * median round, 1 s, cap)."""
        if len(self._rounds) < ESTIMATE_MIN:
            return self._cap_s
        return min(max(USUAL_FACTOR * self._rounds.median(), REPLY_S), self._cap_s)
