"""The geometric median, by Weiszfeld's steps: each update is weighted by the inverse of its
distance to the last estimate."""

from __future__ import annotations

import numpy as np

from .gram import Decision, FloatArray, Gram, ascending, middle_of
from .gram_rules import gram_rule, typical
from .numbers import POSITIVE, number, whole

STEPS_MAX = 1000
STANDSTILL = 1e-10  # in typical distances; after a shorter step the iteration ends
# in typical distances; a nearer update counts as if it were at this distance
SMOOTHING = 1e-3


@gram_rule(absolute=("nu",))
def geometric_median(gram: Gram, *, f: int = 0, nu: float | None = None) -> Decision:
    """The point with the smallest sum of distances to the updates: smoothed Weiszfeld, until
    convergence.

    Tolerates f < n/2; kappa <= 4 (1 + f / (n - 2f))^2. Needs distances; the cost of the steps is
    negligible compared with the two reads of the updates. It starts from the mean of the half of
    the updates that are nearest to the most central update. So, unlike that of ``rfa`` (the
    published variant), the result does not depend on the origin. If rounding prevents convergence,
    or
    updates are nearly on one line, the iteration ends after ``STEPS_MAX`` steps.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate; determines how many updates are needed.
        nu: Smoothing: a shorter distance counts as nu. A thousandth of the typical distance by
            default.
    Raises:
        TooFewUpdates: Fewer than 2f + 1 updates.
        AggregationError: nu is not above 0, or not finite.
    Source: Weiszfeld 1937; Pillutla, Kakade, Harchaoui 2022, "Robust Aggregation for Federated
        Learning", arXiv:1912.13445.
    """
    from_central = gram.squared_distances()[int(np.argmin(middle_of(gram.squared_distances())))]
    weights = gram.even(ascending(from_central)[: gram.n // 2 + 1])
    scale = typical(gram.distances_to(weights), 0)
    smallest = SMOOTHING * scale
    if nu is not None:
        smallest = number("geometric_median", "nu", nu, POSITIVE)
    smallest = max(smallest, gram.resolution, np.finfo(np.float64).tiny)
    still = max(STANDSTILL * scale, STANDSTILL * smallest)
    return Decision(_until_it_stands_still(gram, weights[: gram.n], smallest, still))


def _until_it_stands_still(
    gram: Gram, weights: FloatArray, smallest: float, still: float
) -> FloatArray:
    """Return the weights after steps of ``_weiszfeld``, until a step is no longer than ``still``.
    The step is written out here without points, because for few updates overhead dominates."""
    products = gram.products[: gram.n, : gram.n]
    own, least = products.diagonal(), max(smallest * smallest, float(np.finfo(np.float64).tiny))
    along = products @ weights
    for _ in range(STEPS_MAX):
        reach = own + max(0.0, float(weights @ along))
        squares = reach - 2.0 * along
        squares[squares <= np.maximum(gram.precision * reach, least)] = least
        inverse = np.sqrt(squares.min() / squares)
        before, along_before, weights = weights, along, inverse / inverse.sum()
        along = products @ weights
        if float((weights - before) @ (along - along_before)) <= still * still:
            break
    return weights


@gram_rule(points=("origin",), translation=False, scale=False, robust="bounded")
def rfa(gram: Gram, *, f: int = 0, nu: float = 0.1, steps: int = 8) -> Decision:
    """The geometric median as published: a few smoothed Weiszfeld steps from zero.

    Tolerates f < n/2 if the steps converge. The steps start from zero with a fixed smoothing, so
    the result depends on the origin and on the unit of the updates. For comparison with published
    results; otherwise use ``geometric_median``.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate; determines how many updates are needed.
        nu: Smoothing, in units of an update's norm.
        steps: Number of steps: 8 in the experiments on bucketing, 3 in other experiments.
    Raises:
        TooFewUpdates: Fewer than 2f + 1 updates.
        AggregationError: nu is not above 0 or not finite, or there are no steps.
    Source: Pillutla, Kakade, Harchaoui 2022, arXiv:1912.13445; settings: Karimireddy, He, Jaggi
        2022, arXiv:2006.09365.
    """
    nu = number("rfa", "nu", nu, POSITIVE)
    whole("rfa", "steps", steps, least=1)
    weights = gram.only("origin")
    for _ in range(steps):
        weights = _weiszfeld(gram, weights, nu)
    return Decision(weights)


def _weiszfeld(gram: Gram, weights: FloatArray, nu: float) -> FloatArray:
    apart = np.maximum(gram.distances_to(weights), nu)
    # At most 1: for equal updates apart is tiny, and 1 / apart would overflow.
    inverse = apart.min() / apart
    return gram.full(inverse / inverse.sum())
