"""Pushes of gossip rounds, and the vectors in them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from .presence import Peers, Times

Pushes: TypeAlias = NDArray[Any]
"""``(e,)`` of ``PUSH``."""
PUSH = np.dtype(
    [
        ("receiver", np.int64),
        ("sender", np.int64),
        ("round", np.int64),
        ("arrives_s", np.float64),
        ("is_received", np.bool_),
        ("row", np.int64),
    ]
)
"""Push: ``row`` is that of its vector in ``VectorRows``."""


class VectorRows:
    """Matrix of vectors that are still needed.

    Attributes:
        vectors: ``(v, d)``. Only rows that ``add`` has returned are meaningful.
        are_finite: ``(v,)`` bool, set by the owner of the rows.
    """

    def __init__(self, d: int) -> None:
        self.vectors = torch.empty(0, d)
        self.are_finite = np.zeros(0, bool)
        self._is_free = np.zeros(0, bool)

    def add(self, count: int) -> Peers:
        """Return ``count`` free rows, ascending."""
        lacking = count - int(self._is_free.sum())
        if lacking > 0:
            room, d = self.vectors.shape
            larger = torch.empty(room + lacking + room // 8, d)
            larger[:room] = self.vectors
            self.vectors = larger
            new = np.ones(len(larger) - room, bool)
            self._is_free = np.concatenate([self._is_free, new])
            self.are_finite = np.concatenate([self.are_finite, new])
        rows = np.flatnonzero(self._is_free)[:count]
        self._is_free[rows] = False
        return rows

    def keep(self, *rows: Peers) -> None:
        """Free all other rows; -1 means no row."""
        self._is_free[:] = True
        for each in rows:
            self._is_free[each[each >= 0]] = False


class PushStore:
    """Pushes of one kind that no round has used yet, in transit or received, as the core's
    ``PushStore`` keeps those that one peer has received.

    Args:
        n: Number of peers.
        staleness_max: Rounds for which a push can be used.
    """

    def __init__(self, n: int, staleness_max: int) -> None:
        self._n, self._staleness_max = n, staleness_max
        self.pushes = np.empty(0, PUSH)

    def add(self, pushes: Pushes) -> None:
        """Add pushes that arrive."""
        self.pushes = np.concatenate([self.pushes, pushes])

    def drop(self, peers: Peers) -> None:
        """Drop all pushes to these peers."""
        self.pushes = self.pushes[~np.isin(self.pushes["receiver"], peers)]

    def pop_pushes(self, peers: Peers, round_id: int, close_s: Times, expected: Peers) -> Pushes:
        """Remove and return the pushes that some peers use as they close a round, one of each
        sender: the newest up to this round. If an expected sender has only later ones, it is the
        oldest of these.

        Args:
            close_s: ``(n,)``: when each of the peers closes.
            expected: Numbers of the pairs of receiver and sender that the plan of the round has.
        """
        closes_s = np.full(self._n, -np.inf)
        closes_s[peers] = close_s[peers]
        arrived = self.pushes["arrives_s"] <= closes_s[self.pushes["receiver"]]
        coming, here = self.pushes[~arrived], self.pushes[arrived]
        pairs = here["receiver"] * self._n + here["sender"]
        order = np.lexsort((here["round"], pairs))
        here, pairs = here[order], pairs[order]
        behind = np.searchsorted(pairs, pairs, side="right") - np.arange(len(pairs)) - 1
        here, pairs = here[behind <= self._staleness_max], pairs[behind <= self._staleness_max]
        ahead = here["round"] - round_id
        is_due = (ahead <= 0) & (ahead >= -self._staleness_max)
        is_later = (ahead > 0) & np.isin(pairs, expected)
        worth = np.where(is_due, ahead, -np.inf)
        worth[is_later] = -self._staleness_max - ahead[is_later]
        order = np.lexsort((worth, pairs))
        is_best = np.ones(len(order), bool)
        is_best[:-1] = pairs[order][1:] != pairs[order][:-1]
        used = np.zeros(len(order), bool)
        used[order[is_best]] = worth[order[is_best]] > -np.inf
        self.pushes = np.concatenate([coming, here[~used & (ahead > 0)]])
        chosen: Pushes = here[used]
        return chosen
