"""Pushes of gossip rounds, and their vectors."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from .presence import Peers, Times

Pushes: TypeAlias = NDArray[Any]
"""Structured array ``(e,)`` with the dtype ``PUSH``."""
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
"""Dtype of a push. ``row`` is the row of the pushed vector in ``VectorRows``."""


def last_of_each(keys: NDArray[np.int64], by: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of the element with the largest ``by`` of each group of equal keys, in the
    order of the keys. Of equally large elements, it is the last."""
    order = np.lexsort((by, keys))
    is_last = np.ones(len(order), bool)
    is_last[:-1] = keys[order][1:] != keys[order][:-1]
    return order[is_last]


class VectorRows:
    """Matrix of vectors, with free rows for new vectors.

    Attributes:
        vectors: ``(v, d)``. Only rows that ``add`` has returned are valid.
        are_finite: ``(v,)`` bool: whether the vector of each row is finite. The caller of ``add``
            sets it.
    """

    def __init__(self, d: int) -> None:
        self.vectors = torch.empty(0, d)
        self.are_finite = np.zeros(0, bool)
        self._is_free = np.zeros(0, bool)

    def add(self, count: int) -> Peers:
        """Allocate ``count`` rows, and return their indices, ascending."""
        lacking = count - int(self._is_free.sum())
        if lacking > 0:
            room, d = self.vectors.shape
            # Growing copies all rows. Rows that were never used take no memory.
            larger = torch.empty(room + 4 * lacking, d)
            larger[:room] = self.vectors
            self.vectors = larger
            new = np.ones(len(larger) - room, bool)
            self._is_free = np.concatenate([self._is_free, new])
            self.are_finite = np.concatenate([self.are_finite, new])
        rows = np.flatnonzero(self._is_free)[:count]
        self._is_free[rows] = False
        return rows

    def keep(self, *rows: Peers) -> None:
        """Free all rows but these; -1 means no row."""
        self._is_free[:] = True
        for each in rows:
            self._is_free[each[each >= 0]] = False


class PushStore:
    """Unused pushes of one kind, in transit or received, for all receivers. The core's
    ``PushStore`` has the received pushes of one peer.

    Args:
        n: Number of peers.
        staleness_max: Maximum age at which a push can be used, in rounds.
    """

    def __init__(self, n: int, staleness_max: int) -> None:
        self._n, self._staleness_max = n, staleness_max
        self.pushes = np.empty(0, PUSH)

    def add(self, pushes: Pushes) -> None:
        """Add pushes."""
        self.pushes = np.concatenate([self.pushes, pushes])

    def drop(self, peers: Peers) -> None:
        """Drop all pushes to these peers."""
        self.pushes = self.pushes[~np.isin(self.pushes["receiver"], peers)]

    def pop_pushes(self, peers: Peers, round_id: int, close_s: Times, expected: Peers) -> Pushes:
        """Remove and return the pushes that these peers use as they close a round, one push of each
        sender. It is the sender's newest push up to this round. If an expected sender has pushed
        only for later rounds, it is the oldest of these pushes.

        Args:
            close_s: Time at which each of ``peers`` closes the round.
            expected: Encoded pairs (receiver * n + sender) of the round's plan.
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
        best, used = last_of_each(pairs, worth), np.zeros(len(pairs), bool)
        used[best] = worth[best] > -np.inf
        self.pushes = np.concatenate([coming, here[~used & (ahead > 0)]])
        chosen: Pushes = here[used]
        return chosen
