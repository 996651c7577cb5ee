"""Pushes of gossip rounds: those in time, and late ones that a later round uses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .presence import Peers, Times


@dataclass(frozen=True, slots=True, eq=False)
class Pushes:
    """Pushes of a round, one of each sender to each receiver.

    Attributes:
        senders, receivers: ``(e,)``.
        arrives_s: ``(e,)``: when each arrives.
        rows: ``(e,)``: the row of each in the matrix of vectors.
    """

    senders: Peers
    receivers: Peers
    arrives_s: Times
    rows: Peers

    @classmethod
    def none(cls) -> Pushes:
        """Return no pushes."""
        none = np.zeros(0, np.int64)
        return cls(none, none, np.zeros(0), none)

    def join(self, other: Pushes) -> Pushes:
        """Return these pushes and those of ``other``."""
        return Pushes(
            np.concatenate([self.senders, other.senders]),
            np.concatenate([self.receivers, other.receivers]),
            np.concatenate([self.arrives_s, other.arrives_s]),
            np.concatenate([self.rows, other.rows]),
        )

    def come_by(self, close_s: Times) -> NDArray[np.bool_]:
        """Return whether each comes before its receiver closes, ``(e,)``. ``close_s``: ``(n,)``,
        infinity for peers that do not take part in the round."""
        closes_s = close_s[self.receivers]
        return np.isfinite(closes_s) & (self.arrives_s <= closes_s)

    def choose(self, chosen: NDArray[np.bool_] | Peers) -> Pushes:
        """Return some of the pushes, in this order."""
        return Pushes(
            self.senders[chosen],
            self.receivers[chosen],
            self.arrives_s[chosen],
            self.rows[chosen],
        )


class VectorRows:
    """Matrix of a vector of each peer, and room for further ones behind these."""

    def __init__(self, n: int, d: int) -> None:
        self.n, self._used, self._memory = n, n, torch.zeros(n, d)

    @property
    def own(self) -> Tensor:
        """``(n, d)``: a vector of each peer."""
        return self._memory[: self.n]

    @property
    def every(self) -> Tensor:
        """``(n + m, d)``: all vectors."""
        return self._memory[: self._used]

    def clear(self) -> None:
        """Drop the further vectors."""
        self._used = self.n

    def add(self, vectors: Tensor) -> int:
        """Add vectors ``(m, d)``. Return the row of the first."""
        first, self._used = self._used, self._used + len(vectors)
        if self._used > len(self._memory):
            larger = torch.empty(self._used + self._used // 8, self._memory.shape[1])
            larger[:first] = self._memory[:first]
            self._memory = larger
        self._memory[first : self._used] = vectors
        return first


@dataclass(frozen=True, slots=True, eq=False)
class _Late:
    """Pushes of a round that are not used yet.

    Attributes:
        vectors: ``(m, d)``: what ``pushes.rows`` numbers.
    """

    round_id: int
    pushes: Pushes
    vectors: Tensor


class LatePushes:
    """Pushes that come after their receivers have closed the round, as ``PushStore`` keeps them.

    Args:
        n: Number of peers.
        staleness_max: Rounds for which a push can be used.
    """

    def __init__(self, n: int, staleness_max: int) -> None:
        self._n, self._staleness_max = n, staleness_max
        self._kept: list[_Late] = []  # the oldest first

    def collect(
        self, round_id: int, pushes: Pushes, vectors: VectorRows, close_s: Times
    ) -> list[Pushes]:
        """Return the pushes that are used in a round: those in time, then late ones of the rounds
        before, of which ``vectors`` gets the vectors. Of each sender only the newest one is used.
        The pushes that come later are kept.

        Args:
            close_s: ``(n,)``: when each peer closes the round; infinity: it does not take part.
        """
        in_time = pushes.come_by(close_s)
        used, kept = [pushes.choose(in_time)], []
        known = self._keys(used[0])
        for late in reversed(self._kept):
            if late.round_id < round_id - self._staleness_max:
                continue
            due = late.pushes.come_by(close_s)
            newest = late.pushes.choose(due & ~np.isin(self._keys(late.pushes), known))
            if len(newest.rows):
                used.append(replace(newest, rows=newest.rows + vectors.add(late.vectors)))
                known = np.concatenate([known, self._keys(newest)])
            if not due.all():
                kept.append(replace(late, pushes=late.pushes.choose(~due)))
        self._kept = kept[::-1]
        coming = np.isfinite(pushes.arrives_s) & ~in_time
        if coming.any():
            rows, places = np.unique(pushes.rows[coming], return_inverse=True)
            later = replace(pushes.choose(coming), rows=places)
            self._kept.append(_Late(round_id, later, vectors.every[rows]))
        return used

    def _keys(self, pushes: Pushes) -> Peers:
        """Return one number for each pair of receiver and sender, ``(e,)``."""
        keys: Peers = pushes.receivers * self._n + pushes.senders
        return keys
