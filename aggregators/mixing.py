"""Pre-aggregations: transformations of the updates before a rule."""

from __future__ import annotations

from random import Random
from typing import Literal

import numpy as np

from gossip.errors import AggregationError

from .composing import pre_aggregation
from .gram import FloatArray, Gram, ascending
from .gram_rules import typical
from .numbers import RADIUS, number, whole


@pre_aggregation
def nnm(gram: Gram, *, f: int) -> FloatArray:
    """Nearest-neighbour mixing: each update becomes the mean of its n - f nearest, itself included.

    Tolerates f < n/2. A rule with kappa has kappa' <= 8f / (n - f) (kappa + 1) after it, which is
    the best possible order. If data differ between peers, it is the most effective pre-aggregation
    for any rule.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: n rows. Among equally near updates the earlier ones are used, and always the update
        itself.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan 2023, "Fixing by Mixing",
        arXiv:2302.01772.
    """
    squares, own = gram.squared_distances(), gram.products.diagonal()[: gram.n]
    rounding = gram.precision * (own[:, None] + own)
    # Despite rounding, no other row is as near as the row itself.
    np.fill_diagonal(squares, -np.inf)
    count = gram.n - f
    matrix = np.zeros((gram.n, gram.n))
    for row, apart in enumerate(squares):
        matrix[row, ascending(apart, rounding[row])[:count]] = 1.0 / count
    return matrix


def bucketing_inputs(rows: int, s: int = 2) -> int:
    """Return the smallest number of updates for ``rows`` buckets of at most ``s``."""
    return (rows - 1) * max(1, whole("bucketing", "s", s)) + 1


@pre_aggregation(at_least=lambda f: 1, inputs=bucketing_inputs, symmetric=False)
def bucketing(
    gram: Gram, *, f: int = 0, s: int = 2, seed: int = 0, round_id: int = 0
) -> FloatArray:
    """The means of buckets of s updates each, drawn in every round;
    the last bucket may have fewer.

    f attackers corrupt at most f of ceil(n / s) buckets, so the rule that follows needs as many
    buckets as it needs updates for f. It makes updates of peers with different data more similar,
    but tolerates fewer attackers.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate, by the rule that follows.
        s: Updates in a bucket.
        seed: Seed of the draw.
        round_id: Part of the seed. The runtime passes the current round, so buckets change, and all
            peers draw the same.
    Returns: ceil(n / s) rows.
    Raises: AggregationError: s is less than 1.
    Source: Karimireddy, He, Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via
        Bucketing", arXiv:2006.09365.
    """
    whole("bucketing", "s", s, least=1)
    order = list(range(gram.n))
    Random(f"bucketing/{seed}/{round_id}/{gram.n}").shuffle(order)
    buckets = [order[start : start + s] for start in range(0, gram.n, s)]
    return np.array([gram.even(bucket)[: gram.n] for bucket in buckets])


@pre_aggregation(points=("origin", "center?"), translation=False, absolute=("radius",))
def clipping(
    gram: Gram,
    *,
    f: int = 0,
    radius: float | None = None,
    about: Literal["origin", "center"] = "origin",
) -> FloatArray:
    """Pull updates that are farther than a radius from the origin, or from the local update, back
    to that distance.

    It bounds the effect of each attacker, but alone tolerates none. Needs norms.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate; excluded from the typical distance.
        radius: In units of an update's norm; the median distance by default.
        about: "center" needs a center, which only gossip rounds have.
    Raises: AggregationError: The radius is not above 0; or there is no center.
    """
    if about == "center" and not gram.has("center"):
        raise AggregationError(
            "clipping about a center needs a center, and there is none here",
            "use a gossip topology, or clip about the origin",
        )
    apart = gram.distances_to(about)
    if radius is None:
        radius = typical(apart, f)
    else:
        radius = number("clipping", "radius", radius, RADIUS)
    return _pulled(gram, about, apart, radius)


@pre_aggregation(points=("origin",), translation=False)
def arc(gram: Gram, *, f: int) -> FloatArray:
    """Adaptive robust clipping: the floor(2f / n (n - f)) longest updates are cut to the length
    of the next one.

    Tolerates f < n/2, and keeps the kappa of the rule that follows, which clipping to a fixed
    radius does not. Needs norms.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan 2025, "Adaptive Gradient Clipping for
        Robust Federated Learning", arXiv:2405.14432.
    """
    norms = gram.norms()
    cut = 2 * f * (gram.n - f) // gram.n
    return _pulled(gram, "origin", norms, float(np.sort(norms)[gram.n - cut - 1]))


def _pulled(gram: Gram, point: str, apart: FloatArray, radius: float) -> FloatArray:
    """Return each update moved towards a point, no farther from it than the radius."""
    shares = np.ones(gram.n)
    far = apart > radius
    shares[far] = radius / apart[far]
    matrix = np.zeros((gram.n, len(gram.products)))
    matrix[np.arange(gram.n), np.arange(gram.n)] = shares
    matrix[:, gram.at(point)] += 1 - shares
    return matrix
