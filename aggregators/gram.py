"""Input and output of a Gram rule. The input is the inner products of updates and additional
points.

The weights of updates and points add up to 1. So the result does not depend on the reference, a
vector that is subtracted from all rows before the products are computed. The Gram matrix of a
vector is the sum of those of its shards, and each shard may have another reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gossip.errors import AggregationError

FloatArray = NDArray[np.float64]
POINTS = ("origin", "center", "previous", "gradient", "median")
"""Additional rows that a rule may request: the zero vector; the local update (gossip); the last
aggregate; the judge's gradient; the median of each coordinate, which needs another pass over the
updates."""
GIVEN = ("center", "previous", "gradient")
"""Points that a caller passes as arguments."""
OUTLYING_MAX = float(np.finfo(np.float32).max)


def read_points(points: Sequence[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the names of all points, and of the optional points, which are written with a ``?``.
    Raises AggregationError: There is no such point."""
    plain = tuple(point.removesuffix("?") for point in points)
    for point in plain:
        if point not in POINTS:
            raise AggregationError(f"there is no point {point!r}", f"known: {', '.join(POINTS)}")
    return plain, frozenset(plain).difference(points)


@dataclass(frozen=True, slots=True)
class Gram:
    """Inner products of n updates and some points, after subtraction of a common reference.

    Attributes:
        products: ``(m, m)``. The rows are the n updates, followed by ``points`` in their order.
        n: Number of rows that are updates.
        points: Names of the other rows.
        resolution: The distance that rounding alone can cause between equal updates.
        precision: Relative rounding error of the products. A squared distance within this error is
            set to 0, so that equal rows have the distance 0.
    """

    products: FloatArray
    n: int
    points: tuple[str, ...] = ()
    resolution: float = 0.0
    precision: float = 0.0
    # Squared distances between updates, computed at the first request.
    _apart: list[FloatArray] = field(default_factory=list, init=False, repr=False, compare=False)

    def __add__(self, other: Gram) -> Gram:
        """Return the Gram matrix of the columns of both shards. Both must have the same updates and
        points."""
        if not isinstance(other, Gram) or (self.n, self.points) != (other.n, other.points):
            raise AggregationError(
                f"shards do not fit: {self.n} updates with {self.points}, and {other}"
            )
        return replace(
            self,
            products=self.products + other.products,
            resolution=math.hypot(self.resolution, other.resolution),
            precision=max(self.precision, other.precision),
        )

    def has(self, point: str) -> bool:
        return point in self.points

    def at(self, point: str) -> int:
        """Return the row index of a point. Until there is a last aggregate, ``previous`` is the
        origin."""
        if point == "previous" and point not in self.points:
            point = "origin"
        if point not in self.points:
            raise AggregationError(
                f"there is no point {point!r} among {self.points}",
                "request it: @gram_rule(points=(...,))",
            )
        return self.n + self.points.index(point)

    def only(self, point: str) -> FloatArray:
        """Return ``(m,)``: weight 1 for ``point``, 0 for all other rows."""
        weights = np.zeros(len(self.products))
        weights[self.at(point)] = 1.0
        return weights

    def even(self, chosen: Sequence[int]) -> FloatArray:
        """Return ``(m,)``: equal weights for the chosen updates, none for the others."""
        weights = np.zeros(len(self.products))
        weights[list(chosen)] = 1.0 / len(chosen)
        return weights

    def full(self, weights: ArrayLike) -> FloatArray:
        """Return weights ``(m,)``. Weights ``(n,)`` are padded with zeros for the points."""
        given = np.asarray(weights, dtype=np.float64)
        if given.shape == (self.n,):
            return np.concatenate([given, np.zeros(len(self.points))])
        if given.shape != (len(self.products),):
            raise AggregationError(
                f"weights have the shape {given.shape} for {self.n} updates and the points "
                f"{self.points}"
            )
        return given

    def squared_distances(self) -> FloatArray:
        """Return ``(n, n)``: squared distance of every pair of updates; symmetric, zero on the
        diagonal and between equal rows."""
        if not self._apart:
            products = self.products[: self.n, : self.n]
            squares = products.diagonal()
            sums = squares[:, None] + squares
            apart = sums - (products + products.T)
            apart[apart <= self.precision * sums] = 0.0
            apart.reshape(-1)[:: self.n + 1] = 0.0  # the diagonal
            self._apart.append(apart)
        return self._apart[0].copy()  # because a rule may write into the result

    def with_equal_twins(self) -> Gram:
        """Return the matrix in which equal rows have the products of the first of them, so that
        their scores have the same bits."""
        equal = self.squared_distances() == 0
        # If true, the only zero distances are those of each row to itself.
        if np.count_nonzero(equal) == self.n:
            return self
        order = [*equal.argmax(axis=1), *range(self.n, len(self.products))]
        return replace(self, products=self.products[np.ix_(order, order)])

    def distances_to(self, what: ArrayLike | str) -> FloatArray:
        """Return ``(n,)``: distance of each update to ``what``, the name of a point or the weights
        of a sum of updates and points."""
        return np.asarray(np.sqrt(self.squares_to(what)[0]))

    def nearest_to(self, what: ArrayLike | str) -> list[int]:
        """Return the indices of all updates, sorted by their distance to ``what`` (as for
        ``distances_to``). If distances differ only by rounding, updates keep their order."""
        return ascending(*self.squares_to(what))

    def squares_to(self, what: ArrayLike | str) -> tuple[FloatArray, FloatArray]:
        """Return the squared distances to ``what`` (as for ``distances_to``), and their rounding
        errors, both ``(n,)``."""
        own = self.products.diagonal()[: self.n]
        if isinstance(what, str):
            at = self.at(what)
            along, center = self.products[at], max(0.0, float(self.products[at, at]))
        else:
            weights = self.full(what)
            along = self.products @ weights
            center = max(0.0, float(weights @ along))
        apart = own - 2 * along[: self.n] + center
        apart[apart <= self.precision * (own + center)] = 0.0
        # Without the rounding error of the center's square, which is the same in all distances.
        return apart, self.precision * (own + 2 * np.sqrt(np.maximum(own, 0.0)) * math.sqrt(center))

    def between(self, one: ArrayLike, other: ArrayLike) -> float:
        """Return the distance between two weighted sums of updates and points."""
        difference = self.full(one) - self.full(other)
        return math.sqrt(max(0.0, float(difference @ self.products @ difference)))

    def norms(self) -> FloatArray:
        """Return ``(n,)``: Euclidean norm of each update. Needs the point ``origin``."""
        return self.distances_to("origin")

    def along(self, point: str) -> FloatArray:
        """Return ``(n,)``: inner product of each update with a point, relative to the origin. Needs
        the point ``origin``."""
        row, zero = self.at(point), self.at("origin")
        products = self.products
        return np.asarray(
            products[: self.n, row]
            - products[: self.n, zero]
            - products[zero, row]
            + products[zero, zero]
        )

    def length(self, point: str) -> float:
        """Return the Euclidean norm of a point. Needs the point ``origin``."""
        return self.between(self.only(point), self.only("origin"))

    def mixed(self, matrix: FloatArray) -> Gram:
        """Return the Gram matrix of k weighted sums of these rows, with the same points.
        ``matrix``: the weights, ``(k, n + points)``."""
        count, beside = len(matrix), len(self.points)
        whole = np.zeros((count + beside, len(self.products)))
        whole[:count, : matrix.shape[1]] = matrix
        whole[count:, self.n :] = np.eye(beside)
        return replace(self, products=whole @ self.products @ whole.T, n=count)

    def rows(self, chosen: Sequence[int]) -> Gram:
        """Return the Gram matrix of the updates ``chosen``, in this order, with the same points."""
        kept = [*chosen, *range(self.n, len(self.products))]
        return replace(self, products=self.products[np.ix_(kept, kept)], n=len(chosen))


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of a Gram rule about a Gram matrix.

    Attributes:
        weights: ``(n,)`` or ``(n + points,)``: weights of updates and points in the aggregate. They
            add up to 1; weight on the origin adds nothing to the aggregate.
        outlyingness: ``(n,)``; None means the distance to the aggregate in units of the typical
            distance.
        shares: ``(n,)``: the reported share of each update, for rules that rescale updates and so
            have weights that are no shares. None means the weights divided by their sum.
    """

    weights: FloatArray
    outlyingness: FloatArray | None = None
    shares: FloatArray | None = None


def middle_of(values: FloatArray) -> Any:
    """Return the median along the last axis. For a few values this takes a tenth of the time of
    ``numpy.median``, which also checks for NaN."""
    ordered, count = np.sort(values, axis=-1), values.shape[-1]
    low, high = ordered[..., (count - 1) // 2], ordered[..., count // 2]
    return low + 0.5 * (high - low) if count % 2 == 0 else high


def in_typical(
    distances: FloatArray, floor: float = 0.0, typical: float | None = None
) -> FloatArray:
    """Return the distances divided by their median, or by ``typical``. If that divisor is not above
    ``floor``, the distances are divided by ``floor``, and each result is at least 1."""
    unit = float(middle_of(distances)) if typical is None else typical
    if unit > floor:
        return np.minimum(distances / unit, OUTLYING_MAX)
    if floor > 0:
        return np.clip(distances / floor, 1.0, OUTLYING_MAX)
    return np.where(distances > 0, OUTLYING_MAX, 1.0)


def ascending(scores: ArrayLike, rounding: ArrayLike = 0.0) -> list[int]:
    """Return row indices by ascending score. Rows with equal scores keep their order.

    ``rounding``: largest error of each score, or of all scores. Scores that differ by no more than
    the sum of their errors count as equal. Otherwise the order of nearly equal rows would depend on
    the kernel and the machine.
    """
    given = np.asarray(scores, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    ordered = given[order]
    slack = np.broadcast_to(np.asarray(rounding, dtype=np.float64), given.shape)[order]
    close = ordered[1:] - ordered[:-1] <= slack[1:] + slack[:-1]
    rows: list[int] = order.tolist()
    if not close.any():
        return rows
    placed: list[int] = []
    first = 0
    for at in range(1, len(rows) + 1):
        # Compare with the first row of the group, not with the previous row: otherwise a series of
        # small steps would be one group.
        if at == len(rows) or ordered[at] - ordered[first] > slack[at] + slack[first]:
            placed += sorted(rows[first:at])
            first = at
    return placed
