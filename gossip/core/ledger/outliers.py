"""Test whether an update is an outlier, by its outlyingness and by those of its peer's recent
updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def upper_median(values: Iterable[float]) -> float:
    """Return the median of at least one number: the upper one if the count is even."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def usual_spread(usual: Sequence[float], f: int) -> float:
    """Return the usual outlyingness of honest peers, in units of the median distance; at least 1.

    All but f peers are honest, so the peer with the f + 1st largest value is no farther out than
    some honest peer. If peers have different data, its value is far above the median.

    Args:
        usual: Value of each peer: the median of its recent updates.
    """
    nearest = sorted(usual)[: max(0, len(usual) - max(1, f))]
    return max([1.0, *nearest[-1:]])


def stands_out(recent: Sequence[float], bound: float, outlying: float) -> bool:
    """Whether the geometric mean of the outlyingness of the recent updates of a peer exceeds
    ``bound``.

    Once a model fits its data, nearly all gradients are tiny. A batch with one wrong sample gives a
    gradient ten or a hundred times as large. So an honest peer is far out in one round and near in
    the next, and a Byzantine peer is far out in all. The influence of one update is limited in both
    directions, so that a single one does not outweigh the others.
    """
    # A product of quotients has the same bits on every machine, logarithms have not.
    return math.prod([min(max(1.0 / outlying**3, far / bound), outlying) for far in recent]) > 1.0
