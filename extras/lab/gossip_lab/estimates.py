"""Mean over a few seeds: its standard error, its confidence interval, and comparisons."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Comparison: TypeAlias = Literal["holds", "fails", "undecided", ""]

CONFIDENCE = 0.95
"""Probability that a confidence interval contains the true mean, if the values over the seeds are
normally distributed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, and its uncertainty. ``values`` has one value for each seed, and is not
    empty."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float:
        """Standard error of the mean; infinity if there is only one value."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval of the mean (Student's t); infinite if there is only one value."""
        if len(self.values) < 2:
            return -math.inf, math.inf
        wide = t_quantile(len(self.values) - 1) * self.error
        return self.mean - wide, self.mean + wide

    @property
    def p_value(self) -> float:
        """Probability that chance alone brings the mean this far from 0 (Student's t,
        two-sided)."""
        if len(self.values) < 2:
            return 1.0
        t = abs(self.mean) / self.error if self.error else math.inf
        return 1.0 - within(t, len(self.values) - 1)

    def times(self, factor: float) -> Estimate:
        return Estimate(tuple(factor * value for value in self.values))

    def as_data(self) -> dict[str, Any]:
        """Return the estimate as JSON values. Error and interval of a single value are None,
        because JSON has no infinity."""
        known = len(self.values) > 1
        return {
            "mean": self.mean,
            "standard_error": self.error if known else None,
            "interval": self.interval if known else None,
        }


def compare(differences: Estimate, level: float = 1 - CONFIDENCE) -> Comparison:
    """Return ``holds`` if the mean difference is significantly above 0, ``fails`` if it is
    significantly below 0, and ``undecided`` if it may be due to chance.

    Args:
        differences: For each seed, the difference of two runs with the same random numbers.
        level: Largest p-value that counts as significant.
    """
    if differences.p_value > level:
        return "undecided"
    return "holds" if differences.mean >= 0 else "fails"


def false_discovery_level(p_values: Iterable[float]) -> float:
    """Return the largest p-value that counts as significant, so that on average at most the share
    ``1 - CONFIDENCE`` of the significant results is wrong.

    Source: Benjamini, Hochberg 1995, "Controlling the False Discovery Rate".
    """
    ordered = sorted(p_values)
    return max(
        (p for rank, p in enumerate(ordered, 1) if p <= (1 - CONFIDENCE) * rank / len(ordered)),
        default=0.0,
    )


def t_quantile(freedom: int) -> float:
    """Return the t with ``P(|T| < t) = CONFIDENCE``. T has Student's distribution with ``freedom``
    degrees of freedom."""
    low, high = 0.0, 1.0
    while within(high, freedom) < CONFIDENCE:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def within(t: float, freedom: int) -> float:
    """Return ``P(|T| < t)`` for T as in ``t_quantile``, by the finite series for integer degrees of
    freedom.

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
