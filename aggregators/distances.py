"""Rules that read only the distances between updates: Krum and Multi-Krum."""

from __future__ import annotations

import torch
from torch import Tensor

from gossip.errors import AggregationError

from .arithmetic import relative, resolution, squared_distances, weighted_sum
from .base import Verdict, require, rule


def krum_bound(f: int) -> int:
    """n >= 2f + 3, as the paper has it (2f + 2 < n)."""
    return 2 * f + 3


@rule(at_least=krum_bound)
def krum(updates: Tensor, *, f: int) -> Verdict:
    """The one update nearest to its n - f - 2 nearest neighbours, by the sum of squared distances.

    Args:
        updates: ``(n, d)``, one row per peer.
        f: Byzantine peers to tolerate.
    Returns: ``(d,)``, one of the rows; of equal scores the first row's. Outlyingness is the square root of a score over the
        median score: a score is a sum of squared distances, and outlyingness is in units of distance for every rule.
    Raises: TooFewUpdates: Fewer than 2f + 3 updates.
    Source: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, "Machine Learning with Adversaries".
    """
    require(updates, "krum", f, at_least=krum_bound(f))
    return _nearest(updates, f, keep=1)


@rule(at_least=krum_bound)
def multi_krum(updates: Tensor, *, f: int, m: int | None = None) -> Verdict:
    """The mean of the m updates with the best Krum scores.

    Args:
        updates: ``(n, d)``, one row per peer.
        f: Byzantine peers to tolerate.
        m: How many are averaged; n - f by default.
    Returns: ``(d,)``; of equal scores the earlier rows are taken. Outlyingness as in ``krum``.
    Raises:
        TooFewUpdates: Fewer than 2f + 3 updates.
        AggregationError: m is not in 1..n.
    Source: as ``krum``.
    """
    require(updates, "multi_krum", f, at_least=krum_bound(f))
    n = len(updates)
    keep = n - f if m is None else m
    if not 1 <= keep <= n:
        raise AggregationError(f"multi_krum: m says how many of {n} updates to average and cannot be {keep}")
    return _nearest(updates, f, keep)


def krum_scores(updates: Tensor, f: int) -> Tensor:
    """``(n,)`` float64: for each row the sum of its n - f - 2 smallest squared distances to other rows."""
    squares = squared_distances(updates)
    squares.fill_diagonal_(-1.0)  # so that a row itself sorts first, before its own duplicates
    neighbours = len(updates) - f - 2
    return squares.sort(dim=1).values[:, 1 : 1 + neighbours].sum(dim=1)


def _nearest(updates: Tensor, f: int, keep: int) -> Verdict:
    n = len(updates)
    scores = krum_scores(updates, f)
    chosen = scores.argsort(stable=True)[:keep].tolist()
    weights = [1.0 / keep if row in chosen else 0.0 for row in range(n)]
    aggregate = updates[chosen[0]].clone() if keep == 1 else weighted_sum(updates, weights)
    rounding = (n - f - 2) * resolution(aggregate) ** 2
    return Verdict(aggregate, torch.tensor(weights, dtype=torch.float64), relative(scores, floor=rounding).sqrt())
