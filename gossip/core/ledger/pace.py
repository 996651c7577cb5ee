"""Slow peers, which get smaller slices of the data so that they keep contributing.

Updates report how long they took, and commits repeat it. So this follows from the commits and is
the same on every peer. It changes slowly and settles: once in ``WINDOW`` whole rounds, a peer that
took much longer than the median in most of them, or was missing, gets half of its share, down to a
quarter. A peer that was so quick that it can do twice as much gets twice as much, up to a whole
share. The two conditions are so far apart that a steady peer does not oscillate.

No peer gets more than a whole share, so a peer that reports too short a time gains nothing by it. A
peer that reports too long a time gets less. With less than a quarter, an honest update, the mean of
fewer samples, would look like an outlier to robust rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gossip.core.messages import ROUND_MAX, PeerId

WINDOW = 16
LEVELS = 2
"""A share is halved so often at most."""
SLOW, QUICK = (7, 4), (3, 4)
"""Fractions of the median time. From 1.75 times on, a peer is too slow. Up to 0.75 times, it can do
twice as much and stays under 1.75."""
MARGIN_US = 25_000
"""A difference that no grace ever excludes anybody for: half of its floor."""
TOOK_US_MAX = 2**40


class Pace:
    """How often each peer's share was halved, and what this window has shown of it so far."""

    def __init__(self) -> None:
        self._rounds = 0  # of this window
        # level; rounds with samples, too slow or missing, quick
        self._seen: dict[PeerId, tuple[int, int, int, int]] = {}
        self.even = True
        """Whether all shares are whole."""

    def level(self, peer: PeerId) -> int:
        """0: a whole share; 1: half of one; 2: a quarter."""
        return self._seen.get(peer, (0,))[0]

    def levels(self) -> dict[PeerId, int]:
        """Return the levels of the peers whose share is not whole."""
        return {peer: seen[0] for peer, seen in self._seen.items() if seen[0]}

    def observe(
        self,
        sharers: Sequence[PeerId],
        contributors: Collection[PeerId],
        took_us: Mapping[PeerId, int],
    ) -> None:
        """A round was committed that had samples for everybody.
        Who does not share any more is forgotten."""
        times = sorted(
            [took_us[peer] for peer in sharers if peer in contributors and took_us.get(peer)]
        )
        if not times:
            return
        median = times[(len(times) - 1) // 2]
        seen = {}
        for peer in sharers:
            level, had, slow, quick = self._seen.get(peer, (0, 0, 0, 0))
            took = took_us.get(peer, 0) if peer in contributors else TOOK_US_MAX
            if took > median + MARGIN_US and SLOW[1] * took >= SLOW[0] * median:
                slow += 1
            elif QUICK[1] * took <= QUICK[0] * median or 2 * took <= median + MARGIN_US:
                quick += 1
            seen[peer] = level, had + 1, slow, quick
        self._seen, self._rounds = seen, self._rounds + 1
        if self._rounds == WINDOW:
            self._rounds = 0
            self._seen = {peer: (_moved(*found), 0, 0, 0) for peer, found in seen.items()}
        self.even = not self.levels()

    def pack(self) -> tuple[Any, ...]:
        """Return the table as plain tuples."""
        return self._rounds, tuple([(peer, *seen) for peer, seen in self._seen.items()])

    @classmethod
    def unpack(cls, packed: Any) -> Pace:
        """Return the table that ``pack`` has packed. Raises ValueError for other data."""
        pace = cls()
        if (
            not isinstance(packed, tuple | list)
            or len(packed) != 2
            or not isinstance(packed[1], tuple | list)
        ):
            raise ValueError("pace: two fields were expected")
        for row in packed[1]:
            if (
                not isinstance(row, tuple | list)
                or len(row) != 5
                or not all(_is_count(value) for value in row)
            ):
                raise ValueError("pace: five counts a peer were expected")
            peer, level, had, slow, quick = row
            if level > LEVELS or had >= WINDOW or slow + quick > had or peer in pace._seen:
                raise ValueError("pace: it has lost count")
            pace._seen[peer] = level, had, slow, quick
        if not _is_count(packed[0]) or packed[0] >= WINDOW:
            raise ValueError("pace: the window is longer than it can be")
        pace._rounds, pace.even = packed[0], not pace.levels()
        return pace


def since_us(began: float, now: float, steps: tuple[int, int] = (1, 1)) -> int:
    """Microseconds between two moments, for an update; where so many of a round's local steps were
    taken between them, those that all would take."""
    taken, planned = steps
    return min(max(0, round((now - began) * 1e6 * planned / taken)), TOOK_US_MAX)


def _moved(level: int, had: int, slow: int, quick: int) -> int:
    if 2 * had < WINDOW:
        return level  # it has come in the middle
    if 2 * slow > had:
        return min(level + 1, LEVELS)
    return max(level - 1, 0) if 4 * quick >= 3 * had else level


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= ROUND_MAX
