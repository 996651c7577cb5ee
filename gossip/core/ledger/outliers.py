"""Tests for outliers, which use the outlyingness of an update and of the recent updates of the same
peer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def upper_median(values: Iterable[float]) -> float:
    """Return the median of at least one value. If the number of values is even, return the larger
    of the two middle values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def usual_spread(usual: Sequence[float], f: int) -> float:
    """Return the usual outlyingness of honest peers in units of the median distance, at least 1.

    At most f peers are Byzantine, so the (f + 1)-st largest value is at most the value of some
    honest peer. This value is returned. If the data of the peers differ, it is far above the
    median.

    Args:
        usual: For each peer, the median outlyingness of its recent updates.
    """
    nearest = sorted(usual)[: max(0, len(usual) - max(1, f))]
    return max([1.0, *nearest[-1:]])


def stands_out(recent: Sequence[float], bound: float, outlying: float) -> bool:
    """Whether the geometric mean of the outlyingness of a peer's recent updates exceeds ``bound``.

    Once a model fits its data, nearly all gradients are tiny. A batch with one misclassified sample
    has a gradient that is ten or a hundred times as large. So an honest peer is an outlier in some
    rounds only, but a Byzantine peer in all rounds. The influence of each update is limited in both
    directions, so that a single update does not outweigh all other updates.
    """
    # Unlike a sum of logarithms, a product of quotients has the same bits on every machine.
    return math.prod([min(max(1.0 / outlying**3, far / bound), outlying) for far in recent]) > 1.0
