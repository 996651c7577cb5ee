"""Shares of the data for slow peers. Slow peers get smaller slices, so that their updates arrive in
time.

Each update reports the time that its peer has needed, and the commit repeats this time. So the
shares follow from the commits and are equal on all peers. Shares change once in ``PACE_WINDOW``
rounds. If a peer was missing or much slower than the median in most of these rounds, its share is
halved, down to a quarter. If a peer is fast enough for twice its share, its share is doubled, up to
a whole share. The wide gap between these two conditions keeps the share of a peer with constant
speed from oscillating.

No peer gets more than a whole share, so a peer gains nothing by reporting too short a time. A peer
that reports too long a time gets a smaller share. Below a quarter, an honest update would be the
mean of so few samples that robust rules treat it as an outlier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gossip.core.messages import ROUND_MAX, PeerId
from gossip.core.settings import (
    MARGIN_US,
    PACE_LEVELS,
    PACE_QUICK,
    PACE_SLOW,
    PACE_WINDOW,
    TIME_US_MAX,
)

from .unpacking import count, row, rows, unpacked


class Pace:
    """Level of the share of each peer, and the counts of rounds in the present window."""

    def __init__(self) -> None:
        self._rounds = 0  # Number of rounds in the present window.
        # For each peer: the level, and the numbers of rounds in this window in which the peer had
        # samples, was slow or missing, and was quick.
        self._seen: dict[PeerId, tuple[int, int, int, int]] = {}
        self.even = True
        """Whether all shares are whole."""

    def level(self, peer: PeerId) -> int:
        """Return the level of a peer: 0 for a whole share, 1 for a half, 2 for a quarter."""
        return self._seen.get(peer, (0,))[0]

    def levels(self) -> dict[PeerId, int]:
        """Return the levels of the peers with less than a whole share."""
        return {peer: seen[0] for peer, seen in self._seen.items() if seen[0]}

    def observe(
        self,
        sharers: Sequence[PeerId],
        contributors: Collection[PeerId],
        took_us: Mapping[PeerId, int],
    ) -> None:
        """Record a committed round in which all peers had samples. Entries of peers outside
        ``sharers`` are dropped."""
        times = sorted(
            [took_us[peer] for peer in sharers if peer in contributors and took_us.get(peer)]
        )
        if not times:
            return
        median = times[(len(times) - 1) // 2]
        seen = {}
        for peer in sharers:
            level, had, slow, quick = self._seen.get(peer, (0, 0, 0, 0))
            took = took_us.get(peer, 0) if peer in contributors else TIME_US_MAX
            if took > median + MARGIN_US and PACE_SLOW[1] * took >= PACE_SLOW[0] * median:
                slow += 1
            elif PACE_QUICK[1] * took <= PACE_QUICK[0] * median or 2 * took <= median + MARGIN_US:
                quick += 1
            seen[peer] = level, had + 1, slow, quick
        self._seen, self._rounds = seen, self._rounds + 1
        if self._rounds == PACE_WINDOW:
            self._rounds = 0
            self._seen = {peer: (_moved(*found), 0, 0, 0) for peer, found in seen.items()}
        self.even = not self.levels()

    def pack(self) -> tuple[Any, ...]:
        """Return the table as plain tuples."""
        return self._rounds, tuple([(peer, *seen) for peer, seen in self._seen.items()])

    @classmethod
    def unpack(cls, packed: Any) -> Pace:
        """Return the table from the result of ``pack``. Raises ValueError if the data is
        invalid."""
        pace = cls()
        in_window = count(PACE_WINDOW - 1)
        of_peer = row(count(ROUND_MAX), count(PACE_LEVELS), in_window, in_window, in_window)
        pace._rounds, table = unpacked("pace", row(in_window, rows(of_peer)), packed)
        pace._seen = {peer: (level, *counts) for peer, level, *counts in table}
        for _, had, slow, quick in pace._seen.values():
            if slow + quick > had:
                raise ValueError("pace: the counts of a peer contradict each other")
        if len(pace._seen) < len(table):
            raise ValueError("pace: a peer is listed twice")
        pace.even = not pace.levels()
        return pace


def since_us(began: float, now: float, steps: tuple[int, int] = (1, 1)) -> int:
    """Return the time from ``began`` to ``now`` in microseconds, for an update. ``steps``: number
    of local steps that were made in this time, and number of steps that were planned. The time is
    scaled to the planned number."""
    taken, planned = steps
    return min(max(0, round((now - began) * 1e6 * planned / taken)), TIME_US_MAX)


def _moved(level: int, had: int, slow: int, quick: int) -> int:
    if 2 * had < PACE_WINDOW:
        return level  # the peer has joined within the window
    if 2 * slow > had:
        return min(level + 1, PACE_LEVELS)
    return max(level - 1, 0) if 4 * quick >= 3 * had else level
