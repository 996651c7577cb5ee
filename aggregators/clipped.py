"""Rules that clip each update to a ball around a point that is more trusted than the mean."""

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
    distance of the honest updates from ``previous``, or in the first round by the length of the
    honest updates. Needs norms of differences to ``previous``.

    Args:
        gram: Inner products of the updates.
        previous: ``(d,)``, the last aggregate that this peer applied; the origin in the first
            round. After a state transfer, a peer uses the origin until it has applied an aggregate.
        f: Byzantine peers to tolerate; determines how many updates are needed, and how many the
            typical distance leaves out.
        tau: Radius, in units of an update's norm. By default the median distance to ``previous``,
            computed once before the first step.
        steps: Number of clipping steps.
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

    For gossip: needs a ``center``. Among n updates, each attacker moves the result by at most
    tau / n, so f + 1 updates are enough to stay near the local update. tau^2 = (1 / f) * sum of
    |x_i - x|^2 over the honest updates, as in the theory for equal mixing weights. The n - f
    nearest updates count as honest. (The authors' code uses the second largest distance as tau.)
    With f = 0 nothing is clipped.

    Args:
        gram: Inner products of the updates. If the local update is among them, it counts like the
            others.
        f: Byzantine peers to tolerate.
        tau: Radius, in units of an update's norm. By default that of the formula above.
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
    """Return the weights of this sum: the center plus the mean of the updates' differences to it,
    each clipped to the radius."""
    apart = gram.distances_to(center)
    shares = np.ones(gram.n)
    far = apart > radius
    shares[far] = radius / apart[far]
    return np.asarray(gram.full(shares / gram.n) + (1 - shares.mean()) * center)
