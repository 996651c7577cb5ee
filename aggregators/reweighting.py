"""Iteratively reweighted means: each update is weighted by its distance to the last estimate,
repeatedly.

The rules of this family differ in the weight for a distance s. ``reweighted`` starts from a robust
reference (the coordinate median, or the local update). The scale is the typical distance to this
reference, and stays the same: attackers could move a scale that follows the estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .base import plain_bound
from .gram import Decision, FloatArray, Gram, ascending, in_typical
from .gram_rules import GramRule, gram_rule, typical
from .numbers import POSITIVE, number, whole

Weight = Callable[[FloatArray, float], FloatArray]
"""``(distances (n,), scale) -> weights (n,)``, not negative; the scale may be 0."""


def reweighted(
    weight: Weight, *, name: str, about: str, source: str, trim: bool = False
) -> GramRule:
    """Return a rule of the family.

    Args:
        weight: Function of distances and scale.
        name: Name of the rule.
        about: Description of the weight, the first paragraph of the rule's docstring.
        source: Publication of the weight.
        trim: Whether each step replaces the f most distant updates by the mean of the others.
    """

    def estimate(gram: Gram, *, f: int, steps: int = 3) -> Decision:
        whole(name, "steps", steps, least=1)
        squares, rounding = gram.squares_to("center" if gram.has("center") else "median")
        distances = np.sqrt(squares)
        scale = max(typical(distances, f), gram.resolution)
        weights = gram.even(range(gram.n))
        for _ in range(steps):
            order = ascending(squares, rounding) if trim and f > 0 else []
            weights = gram.full(_shares(weight(distances, scale), distances, order, f))
            squares, rounding = gram.squares_to(weights)
            distances = np.sqrt(squares)
        return Decision(weights, in_typical(distances, gram.resolution, typical(distances, f)))

    replaced = " The f farthest updates are replaced by the mean of the others." if trim else ""
    own = "f + 1 updates are enough to stay near it" if trim else "as many updates are needed"
    estimate.__name__ = estimate.__qualname__ = name
    estimate.__doc__ = f"""{about}

    Tolerates f < n/2; with a trusted ``center`` {own}.
    Starts from the coordinate median, or from ``center``. In each step updates are weighted by
    their distance to the last estimate, in units of the typical distance to the starting point;
    this unit is the same in all steps.{replaced}

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
        center: ``(d,)``, a trusted reference (in gossip: the own update).
        steps: Number of times that the weights are computed.
    Raises:
        TooFewUpdates: Too few updates for f.
        AggregationError: There are no steps.
    Source: {source}
    """
    centered = centered_bound if trim else plain_bound
    return gram_rule(name=name, at_least_centered=centered, points=("center?", "median"))(estimate)


def centered_bound(f: int) -> int:
    """Return f + 1: one honest update in addition to a trusted reference."""
    return f + 1


def _shares(weights: FloatArray, distances: FloatArray, order: Sequence[int], f: int) -> FloatArray:
    """Return weights that add up to 1, after replacing the last f updates of ``order`` by the mean
    of the others. An empty order replaces none."""
    total = float(weights.sum())
    if not total > 0:
        nearest = distances == distances.min()
        weights, total = nearest.astype(np.float64), float(nearest.sum())
    shares = weights / total
    if f > 0 and order:
        kept, gone = list(order[: len(order) - f]), list(order[len(order) - f :])
        shares[kept] += shares[gone].sum() / len(kept)
        shares[gone] = 0.0
    return shares


def fair_weight(distances: FloatArray, scale: float) -> FloatArray:
    """Return scale / (scale + s). The weight is 1/2 at the typical distance, and the effect of an
    update is bounded at any distance."""
    if scale == 0.0:
        return np.asarray((distances == 0).astype(np.float64))
    return np.asarray(scale / (scale + distances))


def huber_weight(distances: FloatArray, scale: float) -> FloatArray:
    """Return min(1, scale / s). The weight is 1 within the typical distance; beyond it, the effect
    of an update is bounded."""
    return np.divide(scale, distances, out=np.ones_like(distances), where=distances > scale)


def cauchy_weight(distances: FloatArray, scale: float) -> FloatArray:
    """Return 1 / (1 + (s / scale)^2): distant updates have almost no weight."""
    if scale == 0.0:
        return np.asarray((distances == 0).astype(np.float64))
    with np.errstate(over="ignore"):  # if distance / scale overflows, the weight is 0
        return np.asarray(1.0 / (1.0 + (distances / scale) ** 2))


suspicion = reweighted(
    fair_weight,
    name="suspicion",
    about=(
        "Weight scale / (scale + s), after which the f farthest updates are replaced by the mean "
        "of the others."
    ),
    source=(
        "the original rule of this project (``suspicion_literal``), corrected; without the "
        'replacement, a step is that of the "Fair" M-estimator.'
    ),
    trim=True,
)
huber = reweighted(
    huber_weight,
    name="huber",
    about=(
        "Huber's M-estimator: weight min(1, scale / s), so that no update has more effect than an "
        "update at the typical distance."
    ),
    source='Huber 1964, "Robust Estimation of a Location Parameter".',
)
cauchy = reweighted(
    cauchy_weight,
    name="cauchy",
    about=(
        "Cauchy's M-estimator: weight 1 / (1 + (s / scale)^2), so that distant updates hardly "
        "count."
    ),
    source='Holland, Welsch 1977, "Robust regression using iteratively reweighted least-squares".',
)


@gram_rule(
    at_least=centered_bound, points=("origin",), translation=False, scale=False, robust=False
)
def suspicion_literal(gram: Gram, *, f: int, alpha: float = 1.0, steps: int = 1) -> Decision:
    """The original rule of this project, unchanged, for comparison: do not train with it.

    Starts with weights w_i = 1/n and g = sum w_i g_i. In each step, s_i = |g_i - g| and w_i = alpha
    / (alpha + s_i). The f updates of least weight are replaced by the mean of the others, and then
    g = sum w_i g'_i. The weights are not normalised, so the length of the result depends on alpha.
    The first reference is the mean, so two colluding attackers do more harm than with the mean. It
    tolerates no Byzantine peer.

    Args:
        gram: Inner products of the updates.
        f: Number of updates to replace.
        alpha: Distance at which a weight is 1/2.
        steps: Number of times that the weights are computed.
    Returns: the weights in the verdict are normalised; those of the aggregate are not.
    Raises:
        TooFewUpdates: Fewer than f + 1 updates.
        AggregationError: alpha is not above 0 or not finite, or there are no steps.
    """
    whole("suspicion_literal", "steps", steps, least=1)
    alpha = number("suspicion_literal", "alpha", alpha, POSITIVE)
    weights = gram.even(range(gram.n))
    raw = distances = np.zeros(gram.n)
    for _ in range(steps):
        order = gram.nearest_to(weights)
        distances = gram.distances_to(weights)
        raw = fair_weight(distances, alpha)
        raw = raw.sum() * _shares(raw, distances, order, f)
        weights = gram.full(raw) + (1 - raw.sum()) * gram.only("origin")
    return Decision(weights, in_typical(distances), raw / raw.sum())
