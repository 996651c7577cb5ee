"""Rules that choose updates by their distances to each other: Krum and Multi-Krum."""

from __future__ import annotations

import numpy as np

from gossip.errors import AggregationError

from .gram import Decision, FloatArray, Gram, ascending, in_typical
from .gram_rules import gram_rule


def krum_bound(f: int) -> int:
    """n >= 2f + 3, as the paper has it (2f + 2 < n)."""
    return 2 * f + 3


@gram_rule(at_least=krum_bound)
def krum(gram: Gram, *, f: int) -> Decision:
    """The one update nearest to its n - f - 2 nearest neighbours, by the sum of squared distances.

    Args:
        gram: Of the updates.
        f: Byzantine peers to tolerate.
    Returns: one of the rows; of equal scores the first row's. Outlyingness is the square root of a score over the
        median score: a score is a sum of squared distances, and outlyingness is in units of distance for every rule.
    Raises: TooFewUpdates: Fewer than 2f + 3 updates.
    Source: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, "Machine Learning with Adversaries".
    """
    return _best(gram, f, keep=1)


@gram_rule(at_least=krum_bound)
def multi_krum(gram: Gram, *, f: int, m: int | None = None) -> Decision:
    """The mean of the m updates with the best Krum scores.

    Args:
        gram: Of the updates.
        f: Byzantine peers to tolerate.
        m: How many are averaged; n - f by default.
    Returns: of equal scores the earlier rows are taken. Outlyingness as in ``krum``.
    Raises:
        TooFewUpdates: Fewer than 2f + 3 updates.
        AggregationError: m is not in 1..n.
    Source: as ``krum``.
    """
    keep = gram.n - f if m is None else m
    if not 1 <= keep <= gram.n:
        raise AggregationError(f"multi_krum: m says how many of {gram.n} updates to average and cannot be {keep}")
    return _best(gram, f, keep)


def krum_scores(squares: FloatArray, f: int) -> FloatArray:
    """``(n,)``: for each row the sum of its n - f - 2 smallest squared distances to other rows."""
    squares = squares.copy()
    np.fill_diagonal(squares, -1.0)  # so that a row itself sorts first, before its own duplicates
    neighbours = max(1, len(squares) - f - 2)
    return np.asarray(np.sort(squares, axis=1)[:, 1 : 1 + neighbours].sum(axis=1))


def _best(gram: Gram, f: int, keep: int) -> Decision:
    scores = krum_scores(gram.squared_distances(), f)
    rounding = (gram.n - f - 2) * gram.resolution**2
    return Decision(gram.even(ascending(scores)[:keep]), np.sqrt(in_typical(scores, rounding)))
