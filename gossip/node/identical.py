"""Detects peers that compute the same gradient because they sample the same batches. Several such
peers contribute no more than one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gossip.core import PeerId, Row
from gossip.vectors import Vector

LOOKED_AT = 64
"""Number of elements in the sample of an update. Whole updates are compared only if their samples
are equal."""


class IdenticalUpdates:
    """Checks the rule's inputs for identical updates until it finds some. An update is ignored if
    its sample is zero, because most rows of an embedding's gradient are zero. An update with few
    non-zero elements is also ignored. For example, if all units of a diverged model are dead, only
    the last bias has a gradient, which depends only on the labels."""

    def __init__(self) -> None:
        self._found = False

    def find_identical(self, rows: Sequence[Row]) -> tuple[PeerId, ...]:
        """Return peers with bitwise equal updates. If there are several groups, return the first
        group. Return () if there is none, or if an earlier call has found one."""
        if self._found or len(rows) < 2:
            return ()
        alike: dict[bytes, list[Row]] = defaultdict(list)
        for row in rows:
            alike[_sample(row).tobytes()].append(row)
        for group in alike.values():
            first, *others = group
            if not others or not _sample(first).any():
                continue
            same = [row for row in others if np.array_equal(row.payload.data, first.payload.data)]
            numbers = len(first.payload.data)
            if same and np.count_nonzero(first.payload.data) > min(LOOKED_AT, numbers // 2):
                self._found = True
                return (first.peer, *[row.peer for row in same])
        return ()


def _sample(row: Row) -> Vector:
    data: Vector = row.payload.data
    return data[:: max(1, len(data) // LOOKED_AT)]
