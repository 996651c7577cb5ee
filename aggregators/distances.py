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
"""Maximum number of search steps of ``mda``, which take a few seconds. f up to 20 needs far
fewer."""


def krum_bound(f: int) -> int:
    """Return n >= 2f + 3, as in the paper (2f + 2 < n)."""
    return 2 * f + 3


def multi_krum_bound(f: int, m: int | None = None) -> int:
    """Return the maximum of ``krum_bound`` and f + m, because more than n - f rows would include an
    attacker's."""
    return max(krum_bound(f), 0 if m is None else f + whole("multi_krum", "m", m))


@gram_rule(at_least=krum_bound)
def krum(gram: Gram, *, f: int) -> Decision:
    """The update with the smallest sum of squared distances to its n - f - 2 nearest neighbours.

    Tolerates 2f + 2 < n; kappa <= 6 (1 + f / (n - 2f)). Needs distances. The result is as noisy as
    one update.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: the row with the lowest score, the first one of equal scores. Outlyingness is the
        square root of a
        score over the median score: a score is a sum of squared distances, and outlyingness is in
        units of distance for every rule.
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
        m: Number of averaged updates; n - f by default, and never more.
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
    np.fill_diagonal(squares, -1.0)  # A row sorts before its duplicates.
    neighbours = max(1, len(squares) - f - 2)
    return np.asarray(np.sort(squares, axis=1)[:, 1 : 1 + neighbours].sum(axis=1))


def _rounding(gram: Gram, rows: Sequence[int], scores: FloatArray, f: int) -> FloatArray:
    """Return a bound on the rounding error of the Krum scores of these rows among themselves."""
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
    """Average per coordinate the n - 4f values nearest to the median, among n - 2f updates that
    Krum chooses one after the other.

    Tolerates 4f + 3 <= n, and bounds each coordinate by honest values, which Krum does not. After
    each choice the scores are computed again among the remaining updates. Several implementations
    keep the initial scores, which is Multi-Krum. Near the end fewer than f + 3 remain; then a score
    is the distance to the nearest one. Two updates that are nearest to each other have equal
    scores: then the one with the better Krum score among all is chosen, for equal scores the
    earlier row.

    Args:
        gram: Inner products of the updates.
        f: Byzantine peers to tolerate.
    Returns: the weight of an update is the share of the coordinates in which it was averaged; 0 if
    it was not chosen.
    Raises: TooFewUpdates: Fewer than 4f + 3 updates.
    Source: El Mhamdi, Guerraoui, Rouault 2018, "The Hidden Vulnerability of Distributed Learning in
        Byzantium", arXiv:1802.07927.
    """
    squares = gram.squared_distances()
    among_all = krum_scores(squares, f)
    left, chosen = ascending(among_all, _rounding(gram, range(gram.n), among_all, f)), []
    for _ in range(gram.n - 2 * f):
        scores = krum_scores(squares[np.ix_(left, left)], f)
        # Scores of equal updates are exactly equal at any length, so they need no rounding.
        rounding = np.where(scores > 0, _rounding(gram, left, scores, f), 0.0)
        chosen.append(left.pop(ascending(scores, rounding)[0]))
    return Decision(gram.even(chosen))


@gram_rule
def mda(gram: Gram, *, f: int) -> Decision:
    """The mean of the n - f updates with the smallest diameter (the largest distance of two of
    them).

    Tolerates f < n/2. Needs distances. The search is exact: it finds the smallest diameter such
    that f updates cover all pairs that are farther apart. This is a vertex cover and takes about
    1.4^f steps, not n over f. Several subsets may have that diameter; then updates are kept in the
    order of their summed squared distances to all, for equal sums the earlier rows.

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
    """Return for each row a bit set of the rows that are farther from it."""
    return [sum(1 << int(other) for other in np.flatnonzero(row > size)) for row in squares]


class _Covers:
    """Whether at most k rows touch every pair of a graph,
    by branching on the row with most pairs."""

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
        # If this row is not in the cover, all its partners are. If it has one pair, both choices
        # cost the same.
        return 1 < most <= k and self.cover(_without(pairs, pairs[row]), k - most)

    def first_kept(self, pairs: list[int], order: list[int]) -> list[int]:
        """Return the first n - f rows of an order that may stay together; rows are tried in
        order."""
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
