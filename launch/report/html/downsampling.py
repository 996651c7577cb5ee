"""Reduction of many values to the columns of a chart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BUCKETS = 240
"""Default number of buckets of a curve. A bucket is one or two pixels wide on a narrow screen, and
five on a wide screen."""


GAP = 3.0


@dataclass(frozen=True, slots=True)
class Buckets:
    """Equal parts of an axis from 0 to ``stop``. ``count``: number of parts."""

    stop: float
    count: int = BUCKETS

    @property
    def centers(self) -> Floats:
        """Centers of the parts, ``(count,)``."""
        return np.asarray(self.width * (np.arange(self.count) + 0.5), np.float64)

    @property
    def width(self) -> float:
        return self.stop / self.count

    def of(self, x: Floats) -> NDArray[np.int64]:
        """Return the index of the part that contains each value of ``x``, or that is nearest to a
        value outside."""
        if self.stop <= 0:
            return np.zeros(len(x), np.int64)
        return np.clip(x / self.width, 0, self.count - 1).astype(np.int64)

    def means(self, x: Floats, y: Floats) -> Floats:
        """Return the mean of the values ``y`` in each part, ``(count,)``; NaN for a part without
        values."""
        at = self.of(x)
        sums, counts = (np.bincount(at, each, self.count) for each in (y, np.ones(len(at))))
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / counts, np.float64)

    def curve(self, x: Floats, y: Floats) -> Floats:
        """Return the mean of the values ``y`` in each part, ``(count,)``. Parts without values are
        interpolated, but are NaN in a gap longer than ``GAP`` times the median gap."""
        found = self.means(x, y)
        known = np.flatnonzero(np.isfinite(found))
        if len(known) < 2:
            return found
        gaps = np.diff(known)
        short = gaps <= GAP * float(np.median(gaps))
        between = np.arange(known[0], known[-1] + 1)
        inside = short[np.clip(np.searchsorted(known, between, side="right") - 1, 0, len(gaps) - 1)]
        filled = np.interp(between, known, found[known])
        at = between[inside]
        found[at] = filled[inside]
        return found

    def quantile(self, x: Floats, y: Floats, q: float) -> Floats:
        """Return the ``q`` quantile of the values ``y`` in each part, ``(count,)``; NaN for a part
        without values."""
        found = np.full(self.count, np.nan)
        order = np.argsort(self.of(x), kind="stable")
        inside, values = self.of(x)[order], y[order]
        edges = np.searchsorted(inside, np.arange(self.count + 1))
        for at in range(self.count):
            if edges[at + 1] > edges[at]:
                found[at] = np.quantile(values[edges[at] : edges[at + 1]], q)
        return found

    def held(self, x: Floats, y: Floats) -> Floats:
        """Return the lowest value of a step function in each part, ``(count,)``: each value of
        ``y`` holds until the next one. NaN before the first value. ``x`` ascends."""
        if not len(x):
            return np.full(self.count, np.nan)
        ends = self.width * (np.arange(self.count) + 1)
        last = np.searchsorted(x, ends, side="right") - 1
        found = np.where(last >= 0, y[np.maximum(last, 0)], np.nan)
        np.fmin.at(found, self.of(x), y)
        return found
