"""Weights from suspicion: the rule of this project's origin, in a sound form and as it was written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossip.errors import AggregationError

from .arithmetic import distance_list, gram_around, in_units_of, resolution, weighted_sum
from .base import Verdict, plain_bound, relative, require, rule
from .coordinates import coordinate_median

FloatArray = npt.NDArray[np.float64]


@rule(at_least=plain_bound, at_least_centered=lambda f: f + 1)
def suspicion(updates: Tensor, *, f: int, center: Tensor | None = None, steps: int = 3) -> Verdict:
    """Weight each update by how little it is suspected, replace the f most suspected by the mean of the others.

    Starts from a robust reference c. In each step: suspicion s_i = |g_i - c|; weight w_i = alpha / (alpha + s_i), normalised;
    the f updates of least weight are replaced by the mean of the others; c becomes the weighted sum.
    alpha is the typical s_i around the first reference and stays for all steps: an alpha that follows the reference
    follows the liars too.

    Args:
        updates: ``(n, d)``, one row per peer.
        f: Byzantine peers to tolerate, and how many updates are replaced.
        center: ``(d,)``, a reference that is trusted (in gossip: one's own update, which is then also a row). By default the
            coordinate median.
        steps: How often the weights are taken anew.
    Returns: ``(d,)``; the weights as they count in the end (0 for a replaced update); outlyingness: the distance to the
        result over the typical one.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates, or f + 1 with a trusted center.
    Notes: In a step it is one of iteratively reweighted least squares for the "Fair" M-estimator, cut at f.
    """
    require(updates, "suspicion", f, at_least=2 * f + 1 if center is None else f + 1, center=center)
    _check_steps("suspicion", steps)
    reference = coordinate_median(updates) if center is None else center
    gram = gram_around(updates, reference).numpy()  # a few numbers: numpy takes half as long over them as torch
    distances = np.sqrt(gram.diagonal()).tolist()
    alpha = max(_typical(distances, f), resolution(reference))
    weights: list[float] = []
    for _ in range(steps):
        weights = _without_most_suspected([_fair_weight(alpha, s) for s in distances], distances, f)
        distances = _distances_to_sum(gram, weights)
    aggregate = weighted_sum(updates, weights)
    final = torch.tensor(distances, dtype=torch.float64)
    outlyingness = in_units_of(_typical(distances, f), final, floor=resolution(aggregate))
    return Verdict(aggregate, torch.tensor(weights, dtype=torch.float64), outlyingness)


@rule(at_least=lambda f: f + 1, translation=False, scale=False, robust=False)
def suspicion_literal(updates: Tensor, *, f: int, alpha: float = 1.0, steps: int = 1) -> Verdict:
    """The rule as it was written, for comparison: do not train with it.

    Equal weights 1/n; g = sum w_i g_i; suspicion s_i = |g_i - g|; w_i = alpha / (alpha + s_i); the f updates of least weight are
    replaced by the mean of the others; g = sum w_i g'_i, and again. Its weights are not normalised, so the size of the
    result depends on alpha; its first reference is the mean, so two colluding liars break it worse than the mean.

    Args:
        updates: ``(n, d)``, one row per peer.
        f: How many updates are replaced.
        alpha: In units of distance.
        steps: How often the weights are taken anew.
    Returns: ``(d,)``. The verdict's weights are normalised, the aggregate is not their combination.
    Raises: TooFewUpdates: Fewer than f + 1 updates.
    """
    require(updates, "suspicion_literal", f, at_least=f + 1)
    _check_steps("suspicion_literal", steps)
    if not alpha > 0:
        raise AggregationError(f"suspicion_literal: alpha is a distance and cannot be {alpha}")
    n = len(updates)
    raw = [1.0 / n] * n
    result = weighted_sum(updates, raw)
    distances: list[float] = []
    for _ in range(steps):
        distances = distance_list(updates, result)
        raw = [_fair_weight(alpha, s) for s in distances]
        replaced = _most_suspected(distances, f)
        share = sum(raw[row] for row in replaced) / (n - f)
        raw = [0.0 if row in replaced else raw[row] + share for row in range(n)]
        result = weighted_sum(updates, raw)
    total = sum(raw)
    weights = torch.tensor(raw, dtype=torch.float64) / total if total > 0 else torch.full((n,), 1.0 / n, dtype=torch.float64)
    return Verdict(result, weights, relative(torch.tensor(distances, dtype=torch.float64)))


def _fair_weight(alpha: float, distance: float) -> float:
    """alpha / (alpha + distance); with alpha zero, only what is exactly on the reference counts."""
    return alpha / (alpha + distance) if alpha > 0 else float(distance == 0.0)


def _distances_to_sum(gram: FloatArray, weights: Sequence[float]) -> list[float]:
    """Distance of each row to the weighted sum of all (weights that add up to 1), by ``gram_around`` anything."""
    factors = np.array(weights)
    along = gram @ factors
    squares = gram.diagonal() - 2 * along + factors @ along
    distances: list[float] = np.sqrt(np.maximum(squares, 0.0)).tolist()
    return distances


def _typical(distances: Sequence[float], f: int) -> float:
    """The median distance, or the (n - f)-th smallest when that comes first: the largest that honest peers vouch for."""
    return min(statistics.median(distances), sorted(distances)[len(distances) - f - 1])


def _most_suspected(distances: Sequence[float], f: int) -> frozenset[int]:
    """The f rows farthest away; of equals the later ones."""
    return frozenset(sorted(range(len(distances)), key=lambda row: (distances[row], row))[len(distances) - f :])


def _without_most_suspected(weights: Sequence[float], distances: Sequence[float], f: int) -> list[float]:
    """Normalised weights after the f most suspected were replaced by the mean of the others."""
    replaced = _most_suspected(distances, f)
    total = sum(weights)
    share = sum(weights[row] for row in replaced) / (total * (len(weights) - f))
    return [0.0 if row in replaced else weights[row] / total + share for row in range(len(weights))]


def _check_steps(name: str, steps: int) -> None:
    if steps < 1:
        raise AggregationError(f"{name} takes at least one step, not {steps}")
