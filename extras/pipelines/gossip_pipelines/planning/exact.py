"""The best cuts of the layers for groups in a given order, by dynamic programming.

As in Alpa, the total is a sum plus a maximum, so the sum is minimised under a limit of the maximum.
Alpa tries every value of the maximum (arXiv:2201.12023, section 5.2). Here each solution gives the
next limit: no better solution has a larger maximum. So a few passes are enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .costs import Numbers, Tables


@dataclass(frozen=True, slots=True)
class Cut:
    """Bounds of the stages, and the resulting time of a step.

    Attributes:
        bounds: S + 1 numbers: stage s has the layers from ``bounds[s]`` up to ``bounds[s + 1]``.
        fill_s: Time of one micro-batch through all stages.
        hold_s: Time that the other micro-batches add at the slowest stage or link.
        exchange_s: Time of the exchange in the slowest group.
    """

    bounds: tuple[int, ...]
    fill_s: float
    hold_s: float
    exchange_s: float

    @property
    def step_s(self) -> float:
        return self.fill_s + self.hold_s + self.exchange_s


def cut_at(tables: Tables, bounds: tuple[int, ...]) -> Cut:
    """Return the cut at these bounds with its times; infinite if a stage does not fit."""
    stages = np.arange(len(bounds) - 1)
    at = stages, np.array(bounds[1:]), np.array(bounds[:-1])
    return Cut(
        bounds,
        float(tables.fill[at].sum()),
        float(tables.hold[at].max()),
        float(tables.exchange[at].max()),
    )


def best_cut(tables: Tables, below: float = math.inf) -> Cut | None:
    """Return the cut with the shortest step; None if no step is shorter than ``below`` seconds.

    The result is exact. Memory limits are the infinite entries of ``tables.fill``.
    """
    best: Cut | None = None
    fill, limit = tables.fill, math.inf
    while True:
        if limit < math.inf:
            fill = np.where(tables.exchange < limit, tables.fill, math.inf)
        bounds = _best_without_exchange(fill, tables.hold, below)
        if bounds is None:
            return best
        found = cut_at(tables, bounds)
        if found.step_s < below:
            best, below = found, found.step_s
        if not 0.0 < found.exchange_s < limit:
            return best
        limit = found.exchange_s  # a longer exchange cannot be better


def _best_without_exchange(fill: Numbers, hold: Numbers, below: float) -> tuple[int, ...] | None:
    """Return the bounds with the smallest ``sum fill + max hold``; None if it is not less than
    ``below``."""
    held = np.where(fill < math.inf, hold, math.inf)
    stages = np.arange(len(fill))
    best, found = None, _least_sum(fill)
    while found is not None and found[0] < below:
        lowest, bounds = found
        longest = float(held[stages, bounds[1:], bounds[:-1]].max())
        if lowest + longest < below:
            best, below = bounds, lowest + longest
        # The remaining plans have no shorter fill, so a longer hold cannot be better.
        found = _least_sum(np.where(held < min(longest, below - lowest), fill, math.inf))
    return best


def _least_sum(fill: Numbers) -> tuple[float, tuple[int, ...]] | None:
    """Return the smallest sum over all stages, and its bounds; None if no division fits."""
    best, came = fill[0, :, 0], []
    for of_stage in fill[1:]:
        total = of_stage + best
        at = total.argmin(axis=1)
        came.append(at)
        best = total[np.arange(len(at)), at]
    end = len(best) - 1
    if not best[end] < math.inf:
        return None
    bounds = [end]
    for at in reversed(came):
        bounds.append(int(at[bounds[-1]]))
    return float(best[end]), (0, *reversed(bounds))
