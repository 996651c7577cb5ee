"""Successive halving (Jamieson, Talwalkar 2016, arXiv:1502.07943): all cells run up to a rung, and
the best of every ``REDUCTION`` cells continue.

The pruners of Optuna and Ray (ASHA, Li et al. 2020, arXiv:1810.05934) compare a cell only with
cells that have reported before. If the worst cells run first, each cell is the best so far, and
none is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from gossip_lab.playground.grids import CellResult, WorldCell
from gossip_lab.playground.played import Row

from .settings import CellEngine, SweepSettings

REDUCTION = 3


def halve(
    run: CellEngine, cells: Sequence[WorldCell], settings: SweepSettings
) -> dict[WorldCell, CellResult]:
    """Run all cells up to the first rung, then the best cells up to the second rung, and so on. A
    cell starts from round 0 for each rung, so that no engine has to store its state. Cells that
    continue but have no result yet are left out of the returned results."""
    metric = settings.asha
    found: dict[WorldCell, CellResult] = {}
    left, rounds = list(cells), find_first_rung(cells)
    while rounds < cells[0].rounds:
        results = run([replace(cell, rounds=rounds) for cell in left], settings)
        if len(results) < len(left):
            return found  # With HTCondor, the results of the other cells appear later.
        scores = {}
        for cell in left:
            result = results[replace(cell, rounds=rounds)]
            found[cell] = replace(result, stopped=not result.error)
            scores[cell] = -math.inf if result.error else compute_score(result.run.rows, metric)
        left = sorted(left, key=scores.__getitem__, reverse=True)[: max(1, len(left) // REDUCTION)]
        for cell in left:
            del found[cell]
        rounds *= REDUCTION
    return found | run(left, settings)


def find_first_rung(cells: Sequence[WorldCell]) -> int:
    """Return the number of rounds before the first rung. There are about log(n) rungs for n cells.
    More rungs would only compare noisier values of earlier rounds (Li et al. 2018, "Hyperband",
    arXiv:1603.06560)."""
    cell, left = cells[0], len(cells)
    rounds = cell.rounds
    while left >= REDUCTION:
        left, rounds = left // REDUCTION, rounds // REDUCTION
    return max(rounds // cell.every, 1) * cell.every


def compute_score(rows: Sequence[Row], metric: str) -> float:
    """Return the score of a cell: the mean of the metric since the previous rung. A single
    evaluation is too noisy to compare cells in their first rounds. The score is minus infinity if
    the mean is NaN or there is no value, as when the script of a real run logs none."""
    since = rows[-1].round / REDUCTION
    values = [row.value for row in rows if row.metric == metric and row.round > since]
    mean = fmean(values) if values else math.nan
    return -math.inf if math.isnan(mean) else mean
