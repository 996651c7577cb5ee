"""Rules that bound the pull of each update by a radius, around a point that is trusted more than
the mean."""

from __future__ import annotations

import numpy as np

from .gram import Decision, FloatArray, Gram
from .gram_rules import gram_rule, typical
from .numbers import RADIUS, number, whole


@gram_rule(
    points=("previous",),
    translation=False,
    robust="bounded",
    absolute=("tau",),
)
def centered_clipping(
    gram: Gram, *, f: int = 0, tau: float | None = None, steps: int = 1
) -> Decision:
    """Average the updates after clipping each to a ball around the last aggregate, and repeat this
    around the result, ``steps`` times in total.

    v + mean of min(1, tau / |x_i - v|) (x_i - v). Tolerates f < n/2 in practice, f < 0.15 n in
    theory, if ``previous`` is close to the honest updates. Attackers can move the aggregate by the
    distance of the honest updates from ``previous``, or in the first round by their length. Needs
    norms of differences to ``previous``.

    Args:
        gram: Inner products of the updates.
        previous: ``(d,)``, the last aggregate; the origin in the first round. In a run this is the
            last one that was applied. A peer that has received its state from another peer uses the
            origin until it has applied an aggregate.
        f: Byzantine peers to tolerate; determines how many updates are needed, and the number
            left out of the typical distance.
        tau: Radius, in units of an update's norm. By default the median distance to ``previous``,
            taken once before the steps.
        steps: Rounds of clipping.
    Raises:
        TooFewUpdates: Fewer than 2f + 1 updates.
        AggregationError: tau is not above 0, or there are no steps.
    Source: Karimireddy, He, Jaggi 2021, "Learning from History for Byzantine Robust Optimization",
        arXiv:2012.10333.
    """
    whole("centered_clipping", "steps", steps, least=1)
    weights = gram.only("previous")
    if tau is None:
        radius = typical(gram.distances_to(weights), f)
    else:
        radius = number("centered_clipping", "tau", tau, RADIUS)
    for _ in range(steps):
        weights = _clipped(gram, weights, radius)
    return Decision(weights)


@gram_rule(at_least_centered=lambda f: f + 1, points=("center",), absolute=("tau",))
def self_centered_clipping(gram: Gram, *, f: int, tau: float | None = None) -> Decision:
    """The local update plus the mean of the clipped differences of all updates to it.

    For gossip: needs a ``center``. Each of f attackers of n pulls by tau / n at most, so f + 1
    updates are enough to stay near the local one. tau^2 = (1 / f) * sum of |x_i - x|^2 over the
    honest updates, as in the theory for equal mixing weights. The n - f nearest updates count as
    honest. (The authors' code takes the second largest distance.) With f = 0 nothing is clipped.

    Args:
        gram: Inner products of the updates. The local one, if it is among them, counts like the
            others.
        f: Byzantine peers to tolerate.
        tau: Radius, in units of an update's norm, in place of the one of the theory.
    Raises:
        TooFewUpdates: Fewer than f + 1 updates.
        AggregationError: tau is not above 0.
    Source: He, Karimireddy, Jaggi 2022, "Byzantine-robust decentralized learning via
        ClippedGossip", arXiv:2202.01545.
    """
    radius = np.inf
    if tau is not None:
        radius = number("self_centered_clipping", "tau", tau, RADIUS)
    elif f > 0:
        near = np.sort(gram.distances_to("center"))[: gram.n - f]
        radius = float(np.sqrt(near @ near / f))
    return Decision(_clipped(gram, gram.only("center"), radius))


def _clipped(gram: Gram, center: FloatArray, radius: float) -> FloatArray:
    """Return the weights of the center plus the mean of the differences to it, each clipped to the
    radius."""
    apart = gram.distances_to(center)
    shares = np.ones(gram.n)
    far = apart > radius
    shares[far] = radius / apart[far]
    return np.asarray(gram.full(shares / gram.n) + (1 - shares.mean()) * center)
