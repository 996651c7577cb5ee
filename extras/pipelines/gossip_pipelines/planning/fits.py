"""Linear models of measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .files import Seconds


class CostLine(NamedTuple):
    """Time ``fixed_s + each_s * count`` in seconds. ``count`` is the number of samples in a layer
    or the number of bytes on a link."""

    fixed_s: Seconds
    each_s: Seconds

    def at(self, count: float) -> float:
        """Return the time for ``count`` in seconds."""
        return self.fixed_s + self.each_s * count


def fit_line(counts: Sequence[float], seconds: Sequence[float]) -> CostLine:
    """Fit a line by least squares with the constraint that neither part is negative.

    If noise makes a part negative, it is set to 0, and only the other part is fitted.

    Args:
        counts: ``(n,)`` numbers of samples or bytes, with at least two different values.
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
    """Return the coefficient of determination, at most 1. It is negative if the mean of
    ``measured`` is a better prediction than ``predicted``."""
    y = np.asarray(measured, float)
    rest = float(((y - np.asarray(predicted, float)) ** 2).sum())
    whole = float(((y - y.mean()) ** 2).sum())
    if whole == 0.0:
        return 1.0 if rest == 0.0 else 0.0
    return 1.0 - rest / whole
