"""Dynamic programming that finds the best cuts of the layers for groups in a given order.

As in Alpa, the time is a sum plus a maximum. So the sum is minimized under an upper limit of the
maximum. Alpa tries every possible maximum as the limit (arXiv:2201.12023, section 5.2). Here the
maximum of each solution is the next limit, because a better solution must have a smaller maximum.
Therefore a few passes are enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .costs import Numbers, Tables


@dataclass(frozen=True, slots=True)
class Cut:
    """Boundaries of the stages, and the time of a step with them.

    Attributes:
        bounds: S + 1 indices of layers. Stage s has the layers from ``bounds[s]`` to
            ``bounds[s + 1] - 1``.
        fill_s: Time of one micro-batch through all stages.
        hold_s: Additional time of the other micro-batches at the slowest stage or link.
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
    """Return the cut at these bounds with its times. The times are infinite if a stage does not fit
    into the memory of its group."""
    stages = np.arange(len(bounds) - 1)
    at = stages, np.array(bounds[1:]), np.array(bounds[:-1])
    return Cut(
        bounds,
        float(tables.fill[at].sum()),
        float(tables.hold[at].max()),
        float(tables.exchange[at].max()),
    )


def best_cut(tables: Tables, below: float = math.inf) -> Cut | None:
    """Return the cut with the shortest step, or None if no step is shorter than ``below`` seconds.

    The result is exact. Stages that exceed a memory limit have infinite entries in ``tables.fill``.
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
        limit = found.exchange_s  # A longer exchange cannot be better.


def _best_without_exchange(fill: Numbers, hold: Numbers, below: float) -> tuple[int, ...] | None:
    """Return the bounds with the smallest ``sum fill + max hold``, or None if this is not less than
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
    """Return the smallest sum over all stages and its bounds, or None if no cut fits."""
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
