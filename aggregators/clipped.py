"""Rules that bound the pull of each update by a radius, around a point that is trusted more than
the mean."""

from __future__ import annotations

import numpy as np

from gossip.errors import AggregationError

from .base import number, whole
from .gram import Decision, FloatArray, Gram
from .gram_rules import gram_rule, typical


@gram_rule(
    points=("previous",),
    one_look=lambda steps=1, **_: steps == 1,
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
    tau = _checked_radius("centered_clipping", tau)
    if whole("centered_clipping", "steps", steps) < 1:
        raise AggregationError(f"centered_clipping takes at least one step, not {steps}")
    weights = gram.only("previous")
    radius = typical(gram.distances_to(weights), f) if tau is None else tau
    for _ in range(steps):
        weights = _clipped(gram, weights, radius)
    return Decision(weights)


@gram_rule(at_least_centered=lambda f: f + 1, points=("center",), one_look=True, absolute=("tau",))
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
    tau = _checked_radius("self_centered_clipping", tau)
    if tau is None and f > 0:
        near = np.sort(gram.distances_to("center"))[: gram.n - f]
        tau = float(np.sqrt(near @ near / f))
    return Decision(_clipped(gram, gram.only("center"), np.inf if tau is None else tau))


def _clipped(gram: Gram, center: FloatArray, radius: float) -> FloatArray:
    """Return the weights of the center plus the mean of the differences to it, each clipped to the
    radius."""
    apart = gram.distances_to(center)
    shares = np.ones(gram.n)
    far = apart > radius
    shares[far] = radius / apart[far]
    return np.asarray(gram.full(shares / gram.n) + (1 - shares.mean()) * center)


def _checked_radius(name: str, tau: float | None) -> float | None:
    if tau is not None and not (tau := number(name, "tau", tau)) > 0:
        raise AggregationError(f"{name}: tau is the radius of a ball and cannot be {tau}")
    return tau
