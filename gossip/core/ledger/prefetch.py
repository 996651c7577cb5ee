"""Prediction of the samples that a peer reads in the next rounds, so that its trainer can prefetch
them.

A prediction is right if the contributors of the last round contribute again. The samples that a
peer actually reads follow from the commits alone. So a wrong prediction costs only a fetch or, with
overlap, an update that was computed in advance. No sample is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, TypeAlias

from gossip.core.messages import ROUND_MAX, PeerId
from gossip.core.settings import PREDICTED_ROUNDS, RANGES_MAX

from .data_cursor import DataCursor, Ranges

Coming: TypeAlias = tuple[tuple[int, Ranges], ...]
"""Epoch and slice of each of the next rounds, in order. Rounds without samples for the peer are
omitted."""


class CursorLookahead:
    """Simulation of the next rounds on a copy of the data cursor. While the predictions are right,
    each round needs only one further call of ``assign``."""

    def __init__(self) -> None:
        self.ahead = 0  # number of rounds to predict; 0 if no prediction is requested
        self._sharers: tuple[PeerId, ...] = ()
        self._contributing: tuple[PeerId, ...] = ()
        # for each simulated round: the outlook of the cursor before the round, the epoch, and the
        # slice of the local peer
        self._steps: deque[tuple[tuple[Any, ...], int, Ranges]] = deque()
        self._shadow = DataCursor()

    def reach(self, ahead: int) -> None:
        """Set the number of rounds to predict, at most ``PREDICTED_ROUNDS``."""
        self.ahead = min(ahead, PREDICTED_ROUNDS)

    def predict_rounds(
        self,
        cursor: DataCursor,
        sharers: tuple[PeerId, ...],
        local: PeerId,
        absent: frozenset[PeerId] = frozenset(),
    ) -> Coming:
        """Return the slices of ``local`` in the rounds after the next round of ``cursor``. The
        prediction assumes that all ``sharers`` except ``absent`` contribute."""
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
            # ``DataCursor.commit`` without times changes no object in place, so a shallow copy is
            # enough.
            self._shadow = copy(cursor)
        everything = dict.fromkeys(contributing, ROUND_MAX)
        while len(self._steps) <= self.ahead:
            ranges = self._shadow.assign(sharers)[local]
            self._steps.append((self._shadow.outlook(), self._shadow.epoch, ranges))
            self._shadow.commit(sharers, everything)
        return bounded((epoch, ranges) for _, epoch, ranges in list(self._steps)[1:])


def bounded(guesses: Iterator[tuple[int, Ranges]] | Sequence[tuple[int, Ranges]]) -> Coming:
    """Return the non-empty predictions, up to a total of ``RANGES_MAX`` ranges."""
    coming: list[tuple[int, Ranges]] = []
    pairs = 0
    for epoch, ranges in guesses:
        pairs += len(ranges)
        if pairs > RANGES_MAX:
            break
        if ranges:
            coming.append((epoch, ranges))
    return tuple(coming)
