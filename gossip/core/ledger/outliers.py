"""Test whether an update is an outlier, by the outlyingness of this update and of its peer's recent
updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def upper_median(values: Iterable[float]) -> float:
    """Return the median of at least one number. Return the upper middle one if their count is
    even."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def usual_spread(usual: Sequence[float], f: int) -> float:
    """Return the usual outlyingness of honest peers in units of the median distance, at least 1.

    All but f peers are honest, so the peer with the f + 1st largest value is no farther out than
    some honest peer. If the data of the peers differ, this value is far above the median.

    Args:
        usual: For each peer, the median outlyingness of its recent updates.
    """
    nearest = sorted(usual)[: max(0, len(usual) - max(1, f))]
    return max([1.0, *nearest[-1:]])


def stands_out(recent: Sequence[float], bound: float, outlying: float) -> bool:
    """Whether the geometric mean of the outlyingness of a peer's recent updates exceeds ``bound``.

    Once a model fits its data, nearly all gradients are tiny. A batch with one misclassified sample
    has a gradient that is ten or a hundred times as large. So an honest peer is far out in one
    round and near in the next, whereas a Byzantine peer is far out in all rounds. The influence of
    each update is limited in both directions, so that a single update does not outweigh the others.
    """
    # A product of quotients has the same bits on every machine, unlike logarithms.
    return math.prod([min(max(1.0 / outlying**3, far / bound), outlying) for far in recent]) > 1.0
