"""Samples that a peer will probably read in the next rounds, so that its trainer can fetch them
beforehand.

The guess is right while the contributors of the last round contribute. What a peer reads follows
from the commits alone. So a wrong guess costs a fetch, or with overlap an update that was computed
beside a round, and never a sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, TypeAlias

from gossip.core.messages import ROUND_MAX, PeerId

from .data_cursor import DataCursor, Ranges

AHEAD_MAX = 32
"""Rounds: a trainer that fetches more batches than these at a time is told of these."""
PAIRS_MAX = 256
"""Most ranges in all guesses together. Samples that were returned in many small pieces are not
worth a guess."""

Coming: TypeAlias = tuple[tuple[int, Ranges], ...]
"""Epoch and slice of rounds to come, in order.
Rounds in which the peer gets nothing are left out."""


class CursorLookahead:
    """Plays the next rounds on a copy of the data cursor. While its guesses hold, a round costs one
    more ``assign``."""

    def __init__(self) -> None:
        self.ahead = 0  # rounds to look ahead; 0: nobody wants to know
        self._sharers: tuple[PeerId, ...] = ()
        self._contributing: tuple[PeerId, ...] = ()
        # the cursor before a round, then what we get in it
        self._steps: deque[tuple[tuple[Any, ...], int, Ranges]] = deque()
        self._shadow = DataCursor()

    def reach(self, ahead: int) -> None:
        """Set the number of rounds to look ahead, at most ``AHEAD_MAX``."""
        self.ahead = min(ahead, AHEAD_MAX)

    def predict_rounds(
        self,
        cursor: DataCursor,
        sharers: tuple[PeerId, ...],
        local: PeerId,
        absent: frozenset[PeerId] = frozenset(),
    ) -> Coming:
        """The rounds behind the one that ``cursor`` is about to give out to ``sharers``, if all of
        these contribute but those ``absent``."""
        if not self.ahead or not cursor.configured or local not in sharers:
            return ()
        contributing = tuple([peer for peer in sharers if peer not in absent])
        if (sharers, contributing) != (self._sharers, self._contributing):
            self._sharers, self._contributing = sharers, contributing
            self._steps.clear()
        now = cursor.outlook()
        while self._steps and self._steps[0][0] != now:
            self._steps.popleft()
        if not self._steps:
            # a commit that does not say how long anybody took changes nothing in place
            self._shadow = copy(cursor)
        everything = dict.fromkeys(contributing, ROUND_MAX)
        while len(self._steps) <= self.ahead:
            ranges = self._shadow.assign(sharers)[local]
            self._steps.append((self._shadow.outlook(), self._shadow.epoch, ranges))
            self._shadow.commit(sharers, everything)
        return bounded((epoch, ranges) for _, epoch, ranges in list(self._steps)[1:])


def bounded(guesses: Iterator[tuple[int, Ranges]] | Sequence[tuple[int, Ranges]]) -> Coming:
    """Those that give something, as far as they fit into a word to the trainer."""
    coming: list[tuple[int, Ranges]] = []
    pairs = 0
    for epoch, ranges in guesses:
        pairs += len(ranges)
        if pairs > PAIRS_MAX:
            break
        if ranges:
            coming.append((epoch, ranges))
    return tuple(coming)
