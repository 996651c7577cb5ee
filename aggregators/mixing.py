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
    """Nearest-neighbour mixing: each update becomes the mean of the n - f updates nearest to it,
    including itself.

    Tolerates f < n/2. A rule with robustness kappa has kappa' <= 8f / (n - f) (kappa + 1) after
    this stage, which is the best possible order. If peers have different data, it is the most
    effective pre-aggregation for any rule.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: n rows. Each contains the update itself; of equally near updates, the earlier rows are
        used.
    Raises: TooFewUpdates: Fewer than 2f + 1 updates.
    Source: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan 2023, "Fixing by Mixing",
        arXiv:2302.01772.
    """
    squares, own = gram.squared_distances(), gram.products.diagonal()[: gram.n]
    rounding = gram.precision * (own[:, None] + own)
    # This makes each row its own nearest neighbour in spite of rounding.
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
    """The means of random buckets of s updates, which change in every round;
    the last bucket may have fewer.

    f attackers corrupt at most f of ceil(n / s) buckets, so the rule that follows needs as many
    buckets as it needs updates for f. Bucketing makes updates of peers with different data more
    similar, but fewer attackers are tolerated.

    Args:
        gram: Inner products of the updates.
        f: Has no effect here; the rule that follows uses it.
        s: Updates in a bucket.
        seed: Seed of the random order.
        round_id: Also a part of the seed. The runtime passes the current round, so buckets change,
            and are the same on all peers.
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

    It bounds the effect of each attacker, but without a robust rule it tolerates no attacker. Needs
    norms.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate; the default radius leaves out the f largest distances.
        radius: In units of an update's norm; the median distance by default.
        about: The point. "center" is the local update, which only gossip rounds have.
    Raises: AggregationError: The radius is not above 0; or there is no center.
    """
    if about == "center" and not gram.has("center"):
        raise AggregationError(
            "clipping with about=center needs the local update, which is not available here",
            "use a gossip topology, or about=origin",
        )
    apart = gram.distances_to(about)
    if radius is None:
        radius = typical(apart, f)
    else:
        radius = number("clipping", "radius", radius, RADIUS)
    return _pulled(gram, about, apart, radius)


@pre_aggregation(points=("origin",), translation=False)
def arc(gram: Gram, *, f: int) -> FloatArray:
    """Adaptive robust clipping: the floor(2f / n (n - f)) longest updates are clipped to the length
    of the next longest update.

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
    """Return the weights that move each update towards a point until its distance is at most the
    radius."""
    shares = np.ones(gram.n)
    far = apart > radius
    shares[far] = radius / apart[far]
    matrix = np.zeros((gram.n, len(gram.products)))
    matrix[np.arange(gram.n), np.arange(gram.n)] = shares
    matrix[:, gram.at(point)] += 1 - shares
    return matrix
