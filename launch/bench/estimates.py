"""What a mean over a few seeds is worth: its standard error, its interval, what it is above."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Comparison: TypeAlias = Literal["holds", "fails", "undecided", ""]

CONFIDENCE = 0.95
"""Of an interval: so often it has the true mean in it, if what the seeds bring is normal."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, and how certain it is. There is at least one value."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite for one value, which says nothing of it."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of Student's t around the mean."""
        return self.interval_of(CONFIDENCE)

    def interval_of(self, confidence: float) -> tuple[float, float]:
        """The interval of Student's t around the mean that holds the true one so often."""
        if len(self.values) < 2:
            return -math.inf, math.inf
        wide = t_quantile(len(self.values) - 1, confidence) * self.error
        return self.mean - wide, self.mean + wide

    def times(self, factor: float) -> Estimate:
        return Estimate(tuple(factor * value for value in self.values))

    def as_data(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: of one value there is neither error nor interval."""
        known = len(self.values) > 1
        return {
            "mean": self.mean,
            "standard_error": self.error if known else None,
            "interval": self.interval if known else None,
        }


def compare(differences: Estimate, comparisons: int = 1) -> Comparison:
    """Return ``holds`` if the interval of the differences lies above 0, ``fails`` if it lies below,
    else ``undecided``: another few seeds might turn it.

    Args:
        differences: One for each seed, of two runs with the same draws.
        comparisons: All that are made. The interval is widened until they are all right in 95 % of
            cases together (Bonferroni).
    """
    low, high = differences.interval_of(1 - (1 - CONFIDENCE) / comparisons)
    return "holds" if low >= 0 else "fails" if high < 0 else "undecided"


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """t with ``P(|T| < t) = confidence`` for Student's T of so many degrees of freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| < t), by the finite series for whole degrees of freedom.

    Source: Abramowitz, Stegun 1964, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = 0.0 if freedom == 1 else cosine if odd else 1.0
    for each in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (each - 1) / each
        total += term
    return (2 / math.pi) * (angle + sine * total) if odd else sine * total
