"""Straight lines through measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .files import Seconds


class CostLine(NamedTuple):
    """``fixed_s + each_s * count`` seconds: of samples in a layer, or of bytes over a link."""

    fixed_s: Seconds
    each_s: Seconds

    def at(self, count: float) -> float:
        """Seconds."""
        return self.fixed_s + self.each_s * count


def fit_line(counts: Sequence[float], seconds: Sequence[float]) -> CostLine:
    """The line of least squares whose two parts are not negative.

    Noise can give a part below 0, which no link and no layer has. Then the best line without that
    part is taken.

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
    """The part of the variance of ``measured`` that ``predicted`` explains: 1 is all of it; below 0
    the mean of what was measured would have been a better prediction."""
    y = np.asarray(measured, float)
    rest = float(((y - np.asarray(predicted, float)) ** 2).sum())
    whole = float(((y - y.mean()) ** 2).sum())
    if whole == 0.0:
        return 1.0 if rest == 0.0 else 0.0
    return 1.0 - rest / whole
