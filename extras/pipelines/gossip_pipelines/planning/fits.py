"""Straight lines through measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .files import Seconds


class CostLine(NamedTuple):
    """``fixed_s + each_s * count`` seconds for a number of samples in a layer, or of bytes over a
    link."""

    fixed_s: Seconds
    each_s: Seconds

    def at(self, count: float) -> float:
        """Return the seconds for a count."""
        return self.fixed_s + self.each_s * count


def fit_line(counts: Sequence[float], seconds: Sequence[float]) -> CostLine:
    """Return the least-squares line with two non-negative parts.

    Noise can give a negative part. Then the result is the best line without that part.

    Args:
        counts: ``(n,)`` numbers of samples or bytes, at least two different ones.
        seconds: ``(n,)`` measured times, usually medians.
    """
    x, y = np.asarray(counts, float), np.asarray(seconds, float)
    spread = x - x.mean()
    each = float(spread @ y / (spread @ spread))
    fixed = float(y.mean() - each * x.mean())
    if each < 0:
        return CostLine(max(0.0, float(y.mean())), 0.0)
    if fixed < 0:
        return CostLine(0.0, max(0.0, float(x @ y / (x @ x))))
    return CostLine(fixed, each)


def r_squared(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the share of the variance of ``measured`` that ``predicted`` explains, at most 1.
    Below 0 the mean of ``measured`` is a better prediction."""
    y = np.asarray(measured, float)
    rest = float(((y - np.asarray(predicted, float)) ** 2).sum())
    whole = float(((y - y.mean()) ** 2).sum())
    if whole == 0.0:
        return 1.0 if rest == 0.0 else 0.0
    return 1.0 - rest / whole
