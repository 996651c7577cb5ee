"""Rules that choose updates by their distances to each other: Krum, Multi-Krum, Bulyan, and the
subset of least diameter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossip.errors import AggregationError

from .columns import Columns, Kept
from .gram import Decision, FloatArray, Gram, ascending, in_typical
from .gram_rules import gram_rule
from .kernels import middle
from .numbers import whole

COVERS_MAX = 200_000
"""Maximum number of search steps of ``mda``; so many steps take a few seconds. For f up to 20, far
fewer are needed."""


def krum_bound(f: int) -> int:
    """Return 2f + 3, the smallest n that the paper permits (2f + 2 < n)."""
    return 2 * f + 3


def multi_krum_bound(f: int, m: int | None = None) -> int:
    """Return the maximum of ``krum_bound`` and f + m, because a mean of more than n - f updates
    would include an attacker's."""
    return max(krum_bound(f), 0 if m is None else f + whole("multi_krum", "m", m))


@gram_rule(at_least=krum_bound)
def krum(gram: Gram, *, f: int) -> Decision:
    """The update with the smallest sum of squared distances to its n - f - 2 nearest neighbours.

    Tolerates 2f + 2 < n; kappa <= 6 (1 + f / (n - 2f)). Needs distances. The result has the noise
    of a single update.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: the row with the lowest score; for equal scores the earlier row. Outlyingness is the
        square root of (score / median score), because a score is a sum of squared distances, and
        outlyingness is a ratio of distances in every rule.
    Raises: TooFewUpdates: Fewer than 2f + 3 updates.
    Source: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, "Machine Learning with Adversaries",
        arXiv:1703.02757.
    """
    return _best(gram, f, keep=1)


@gram_rule(at_least=multi_krum_bound)
def multi_krum(gram: Gram, *, f: int, m: int | None = None) -> Decision:
    """The mean of the m updates with the best Krum scores.

    Tolerates 2f + 2 < n. Needs distances.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
        m: Number of averaged updates; at most n - f, which is the default.
    Returns: for equal scores the earlier rows are used. Outlyingness as in ``krum``.
    Raises:
        TooFewUpdates: Fewer than 2f + 3 updates, or than m + f.
        AggregationError: m is not a whole number above 0.
    Source: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, as ``krum``.
    """
    return _best(gram, f, gram.n - f if m is None else whole("multi_krum", "m", m, least=1))


def krum_scores(squares: FloatArray, f: int) -> FloatArray:
    """Return ``(n,)``: for each row the sum of its n - f - 2 smallest squared distances to other
    rows (at least one distance)."""
    squares = squares.copy()
    np.fill_diagonal(squares, -1.0)  # Each row sorts before its duplicates.
    neighbours = max(1, len(squares) - f - 2)
    return np.asarray(np.sort(squares, axis=1)[:, 1 : 1 + neighbours].sum(axis=1))


def _rounding(gram: Gram, rows: Sequence[int], scores: FloatArray, f: int) -> FloatArray:
    """Return a bound on the rounding error of the Krum scores that these rows have among
    themselves."""
    return gram.precision * (
        scores + max(1, len(rows) - f - 2) * gram.products.diagonal()[list(rows)]
    )


def _best(gram: Gram, f: int, keep: int) -> Decision:
    scores = krum_scores(gram.squared_distances(), f)
    order = ascending(scores, _rounding(gram, range(gram.n), scores, f))
    floor = (gram.n - f - 2) * gram.resolution**2
    return Decision(gram.even(order[:keep]), np.sqrt(in_typical(scores, floor)))


def _middle_of_chosen(columns: Columns, *, f: int) -> Kept:
    return columns.nearest(columns.n - 2 * f, *middle(columns.n))


@gram_rule(at_least=lambda f: 4 * f + 3, last_step=_middle_of_chosen)
def bulyan(gram: Gram, *, f: int) -> Decision:
    """Choose n - 2f updates by Krum, one after the other, and average in each coordinate their
    n - 4f values nearest to the median.

    Tolerates 4f + 3 <= n, and bounds each coordinate by honest values, which Krum does not. After
    each choice the scores are computed again among the remaining updates. (Several implementations
    keep the initial scores, which is Multi-Krum.) If fewer than f + 3 updates remain, a score is
    the squared distance to the nearest remaining update. So two updates that are nearest to each
    other have equal scores. For equal scores, the update with the better Krum score among all n
    updates is chosen; if these are equal too, the earlier row.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: the weight of an update is proportional to the number of coordinates in which it was
        averaged; 0 if it was not chosen.
    Raises: TooFewUpdates: Fewer than 4f + 3 updates.
    Source: El Mhamdi, Guerraoui, Rouault 2018, "The Hidden Vulnerability of Distributed Learning in
        Byzantium", arXiv:1802.07927.
    """
    squares = gram.squared_distances()
    among_all = krum_scores(squares, f)
    left, chosen = ascending(among_all, _rounding(gram, range(gram.n), among_all, f)), []
    for _ in range(gram.n - 2 * f):
        scores = krum_scores(squares[np.ix_(left, left)], f)
        # The distance between equal updates is exactly 0, so a score of 0 has no rounding error.
        rounding = np.where(scores > 0, _rounding(gram, left, scores, f), 0.0)
        chosen.append(left.pop(ascending(scores, rounding)[0]))
    return Decision(gram.even(chosen))


@gram_rule
def mda(gram: Gram, *, f: int) -> Decision:
    """The mean of the n - f updates with the smallest diameter (largest distance between two of
    them).

    Tolerates f < n/2. Needs distances. The search is exact: it finds the smallest diameter for
    which f updates cover all pairs with a larger distance. This vertex cover takes about 1.4^f
    steps, far fewer than there are subsets. If several subsets have that diameter, updates with a
    smaller sum of squared distances to all updates are preferred; for equal sums the earlier rows.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Raises:
        TooFewUpdates: Fewer than 2f + 1 updates.
        AggregationError: The search would take more than ``COVERS_MAX`` steps.
    Source: Rousseeuw 1985; El Mhamdi, Guerraoui, Guirguis, Hoang, Rouault 2020, arXiv:1905.03853.
    """
    squares = gram.squared_distances()
    sizes = np.unique(squares)
    search = _Covers(gram.n, f)
    low, high = 0, len(sizes) - 1
    while low < high:
        middle = (low + high) // 2
        if search.cover(_farther(squares, sizes[middle]), f):
            high = middle
        else:
            low = middle + 1
    # Distances that differ only by rounding count as equal.
    own = gram.products.diagonal()[: gram.n]
    rounding = gram.precision * (own[:, None] + own)
    order = ascending(squares.sum(axis=1), rounding.sum(axis=1))
    return Decision(gram.even(search.first_kept(_farther(squares - rounding, sizes[low]), order)))


def _farther(squares: FloatArray, size: float) -> list[int]:
    """Return, for each row, the bit set of the rows at a squared distance above ``size``."""
    return [sum(1 << int(other) for other in np.flatnonzero(row > size)) for row in squares]


class _Covers:
    """Search for a vertex cover: at most k rows that touch every pair of a graph. The search
    branches on the row with the most pairs."""

    def __init__(self, n: int, f: int) -> None:
        self._n, self._f, self._steps = n, f, 0

    def cover(self, pairs: list[int], k: int) -> bool:
        self._steps += 1
        if self._steps > COVERS_MAX:
            raise AggregationError(
                f"mda: the best {self._n - self._f} of {self._n} updates are not found in "
                f"{COVERS_MAX} steps",
                "use geometric_median or nnm+trimmed_mean, which need no search",
            )
        degrees = [row.bit_count() for row in pairs]
        most = max(degrees)
        if most == 0:
            return True
        if k == 0 or sum(degrees) > 2 * k * most:
            return False
        row = degrees.index(most)
        if self.cover(_without(pairs, 1 << row), k - 1):
            return True
        # If this row is not in the cover, all its neighbours are. If it has only one neighbour,
        # both choices cover the same pair, so the second choice need not be tried.
        return 1 < most <= k and self.cover(_without(pairs, pairs[row]), k - most)

    def first_kept(self, pairs: list[int], order: list[int]) -> list[int]:
        """Return n - f rows with no pair among them. Rows that come early in ``order`` are
        preferred."""
        kept: list[int] = []
        left_out = 0
        for row in order:
            if len(kept) == self._n - self._f:
                break
            if left_out >> row & 1:
                continue
            out = left_out | pairs[row]
            budget = self._f - out.bit_count()
            if budget >= 0 and self.cover(_without(pairs, out), budget):
                kept, left_out = [*kept, row], out
            else:
                left_out |= 1 << row
        return kept


def _without(pairs: list[int], gone: int) -> list[int]:
    return [0 if gone >> row & 1 else others & ~gone for row, others in enumerate(pairs)]
