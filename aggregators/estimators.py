"""Iteratively reweighted means: each update counts by its distance to the last estimate, and again.

One family, told apart by the weight of a distance s: ``reweighted(weight)`` starts from a robust reference (the coordinate
median, or one's own update), takes the typical distance to it as the scale, and keeps that scale: one that follows the estimate
follows the liars too. The geometric median is the same with weight 1/s, run until it stands still.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gossip.errors import AggregationError

from .base import plain_bound
from .gram import Decision, FloatArray, Gram, ascending, in_typical
from .gram_rules import GramRule, gram_rule, typical

STEPS_MAX = 1000
STANDSTILL = 1e-10  # of the typical distance: a step that is shorter is the last
SMOOTHING = 1e-3  # of the typical distance: nearer than this, an update counts as if it were so far away

Weight = Callable[[FloatArray, float], FloatArray]
"""``(distances (n,), scale) -> weights (n,)``, not negative; the scale may be 0."""


def reweighted(weight: Weight, *, name: str, about: str, source: str, trim: bool = False) -> GramRule:
    """A rule of the family. ``trim``: the f updates of greatest distance are replaced by the mean of the others in each step.

    Args:
        weight: Of distances, given the scale.
        name: As people will type it.
        about: What the weight is, in words, for the docstring.
        source: Of the weight.
    """

    def estimate(gram: Gram, *, f: int, steps: int = 3) -> Decision:
        if steps < 1:
            raise AggregationError(f"{name} takes at least one step, not {steps}")
        distances = gram.distances_to("center" if gram.has("center") else "median")
        scale = max(typical(distances, f), gram.resolution)
        weights = gram.even(range(gram.n))
        for _ in range(steps):
            weights = gram.full(_shares(weight(distances, scale), distances, f if trim else 0))
            distances = gram.distances_to(weights)
        return Decision(weights, in_typical(distances, gram.resolution, typical(distances, f)))

    replaced = ", and the f farthest updates are replaced by the mean of the others" if trim else ""
    own = "f + 1 updates are enough to stay near it" if trim else "it takes as many"
    estimate.__name__ = estimate.__qualname__ = name
    estimate.__doc__ = f"""{about}

    Tolerates f < n/2; with a trusted ``center`` {own}. Starts from the coordinate median, or from ``center``. In each step
    updates are weighted by their distance to the last estimate, in units of the typical distance to the start, which stays
    for all steps{replaced}.

    Args:
        gram: Of the updates.
        f: Byzantine peers to tolerate.
        center: ``(d,)``, a reference that is trusted (in gossip: one's own update).
        steps: How often the weights are taken anew.
    Raises:
        TooFewUpdates: Too few updates for f.
        AggregationError: There are no steps.
    Source: {source}
    """
    centered = centered_bound if trim else plain_bound
    return gram_rule(name=name, at_least_centered=centered, points=("center?", "median"))(estimate)


def centered_bound(f: int) -> int:
    """n >= f + 1: somebody honest, beside a reference that is trusted."""
    return f + 1


def _shares(weights: FloatArray, distances: FloatArray, f: int) -> FloatArray:
    """Weights that add up to 1, after the f farthest updates (of equals the later) were replaced by the mean of the others."""
    total = float(weights.sum())
    if not total > 0:
        nearest = distances == distances.min()
        weights, total = nearest.astype(np.float64), float(nearest.sum())
    shares = weights / total
    if f > 0:
        order = ascending(distances)
        kept, gone = order[: len(order) - f], order[len(order) - f :]
        shares[kept] += shares[gone].sum() / len(kept)
        shares[gone] = 0.0
    return shares


def huber_weight(distances: FloatArray, scale: float) -> FloatArray:
    """min(1, scale / s): full weight within the typical distance, a bounded pull beyond."""
    return np.divide(scale, distances, out=np.ones_like(distances), where=distances > scale)


def cauchy_weight(distances: FloatArray, scale: float) -> FloatArray:
    """1 / (1 + (s / scale)^2): what is far away hardly counts at all."""
    if scale == 0.0:
        return np.asarray((distances == 0).astype(np.float64))
    with np.errstate(over="ignore"):  # infinitely far away in units of the scale counts nothing
        return np.asarray(1.0 / (1.0 + (distances / scale) ** 2))


huber = reweighted(
    huber_weight,
    name="huber",
    about="Huber's M-estimator: weight min(1, scale / s), so that no update pulls more than one at the typical distance.",
    source='Huber 1964, "Robust Estimation of a Location Parameter".',
)
cauchy = reweighted(
    cauchy_weight,
    name="cauchy",
    about="Cauchy's M-estimator: weight 1 / (1 + (s / scale)^2), so that updates far away are as good as left out.",
    source='Holland, Welsch 1977, "Robust regression using iteratively reweighted least-squares".',
)


@gram_rule(absolute=("nu",))
def geometric_median(gram: Gram, *, f: int = 0, nu: float | None = None) -> Decision:
    """The point with the least sum of distances to the updates: smoothed Weiszfeld, until it stands still.

    Tolerates f < n/2; kappa <= 4 (1 + f / (n - 2f))^2. Needs distances; steps cost nothing beside the two passes over the
    updates. Starts from the mean of the half of the updates that are nearest to the most central one, so it does not depend on
    where the origin is; ``rfa`` is the published variant that does.

    Args:
        gram: Of the updates.
        f: Byzantine peers to tolerate; says how many updates are needed.
        nu: Smoothing: a distance counts as nu at least. A thousandth of the typical distance by default.
    Raises:
        TooFewUpdates: Fewer than 2f + 1 updates.
        AggregationError: nu is not above 0; or it does not stand still after ``STEPS_MAX`` steps.
    Source: Weiszfeld 1937; Pillutla, Kakade, Harchaoui 2022, "Robust Aggregation for Federated Learning", arXiv:1912.13445.
    """
    _check_nu("geometric_median", nu)
    medians = np.median(gram.squared_distances(), axis=1)
    from_central = gram.squared_distances()[int(np.argmin(medians))]
    weights = gram.even(ascending(from_central)[: gram.n // 2 + 1])
    scale = typical(gram.distances_to(weights), 0)
    smallest = nu if nu is not None else SMOOTHING * scale
    smallest = max(smallest, gram.resolution, np.finfo(np.float64).tiny)
    for _ in range(STEPS_MAX):
        before, weights = weights, _weiszfeld(gram, weights, smallest)
        if gram.between(weights, before) <= max(STANDSTILL * scale, STANDSTILL * smallest):
            break
    return Decision(weights)


@gram_rule(points=("origin",), translation=False, scale=False)
def rfa(gram: Gram, *, f: int = 0, nu: float = 0.1, steps: int = 8) -> Decision:
    """The geometric median as published: a few smoothed Weiszfeld steps from zero.

    Tolerates f < n/2 as far as the steps go: from zero, with a fixed smoothing, the result depends on where the origin is and
    on the unit of the updates. For comparison with published numbers; otherwise take ``geometric_median``.

    Args:
        gram: Of the updates.
        f: Byzantine peers to tolerate; says how many updates are needed.
        nu: Smoothing, in units of an update's norm.
        steps: 8 in the experiments on bucketing, 3 in others.
    Raises:
        TooFewUpdates: Fewer than 2f + 1 updates.
        AggregationError: nu is not above 0, or there are no steps.
    Source: Pillutla, Kakade, Harchaoui 2022, arXiv:1912.13445; settings: Karimireddy, He, Jaggi 2022, arXiv:2006.09365.
    """
    _check_nu("rfa", nu)
    if steps < 1:
        raise AggregationError(f"rfa takes at least one step, not {steps}")
    weights = gram.only("origin")
    for _ in range(steps):
        weights = _weiszfeld(gram, weights, nu)
    return Decision(weights)


def _weiszfeld(gram: Gram, weights: FloatArray, nu: float) -> FloatArray:
    inverse = 1.0 / np.maximum(gram.distances_to(weights), nu)
    return gram.full(inverse / inverse.sum())


def _check_nu(name: str, nu: float | None) -> None:
    if nu is not None and not nu > 0:
        raise AggregationError(f"{name}: nu is a distance and cannot be {nu}")
