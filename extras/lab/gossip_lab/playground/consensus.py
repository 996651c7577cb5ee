"""Consensus distances that many peers estimate at once, as ``MixingController`` does for one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.core import CALM_SHARE, CoreSettings
from gossip.vectors import sketch

from .presence import Peers

Floats = NDArray[np.float64]
CHUNK = 2**10
"""Peers with estimates in one call."""


class MixingStrength:
    """Strength of mixing of n peers, from the sketches that each of them has received.

    Attributes:
        raised: ``(n,)`` bool: peers that mix more, as the replicas are too far apart.
    """

    def __init__(self, settings: CoreSettings) -> None:
        n = len(settings.peers)
        self.raised = np.zeros(n, bool)
        self._settings = settings
        # of the last exchange: receivers and senders, and the sketches of all peers
        self._receivers = self._senders = np.zeros(0, np.int64)
        self._sketches = np.zeros((n, 0))

    def measure(self, parameters: Tensor, receivers: Peers, senders: Peers) -> None:
        """Update ``raised`` after an exchange.

        Args:
            parameters: ``(n, d)``, those that were exchanged.
            receivers, senders: ``(e,)``: the pushes that came, without those of peers in
                quarantine; each peer has its own parameters as well.
        """
        n, before = len(parameters), self._sketches
        packed = b"".join(sketch(row.numpy(), self._settings.seed) for row in parameters)
        sketches = np.frombuffer(packed, np.float32).reshape(n, -1).astype(np.float64)
        known = np.unique(receivers * n + senders)
        older = np.unique(self._receivers * n + self._senders)
        older = older[~np.isin(older, known)]
        self._sketches, self._receivers, self._senders = sketches, receivers, senders
        table = np.concatenate([sketches, before]) if before.shape[1] else sketches
        to = np.concatenate([np.arange(n), known // n, older // n])
        rows = np.concatenate([np.arange(n), known % n, older % n + n])
        order = np.argsort(to, kind="stable")
        counts = np.bincount(to, minlength=n)
        begins = counts.cumsum() - counts
        bound = self._settings.gossip.consensus_bound
        for begin in range(0, n, CHUNK):
            peers = np.arange(begin, min(begin + CHUNK, n))
            width = np.arange(int(counts[peers].max()))
            there = width < counts[peers][:, None]
            at = np.where(there, begins[peers][:, None] + width, 0)
            ratios = estimate_ratios(table[rows[order][at]], there, self._settings.f)
            limits = np.where(self.raised[peers], CALM_SHARE * bound, bound)
            self.raised[peers] = np.where(
                np.isnan(ratios), self.raised[peers], np.nan_to_num(ratios) > limits
            )

    def scales(self, others: Peers, peers: Peers) -> Tensor:
        """Return the factor on the mixed difference of each peer, ``(m,)`` float32, as
        ``MixingController.scale``."""
        most = others / (others + 1)
        calm = np.minimum(self._settings.gossip.mixing, most)
        return torch.from_numpy(np.where(self.raised[peers], most, calm)).float()


def estimate_ratios(sketches: Floats, there: NDArray[np.bool_], f: int) -> Floats:
    """Return the consensus distance over the norm, ``(m,)``; NaN with too few sketches.

    Args:
        sketches: ``(m, k, s)``, those that each of m peers has.
        there: ``(m, k)`` bool: the sketches that count.
        f: Sketches of Byzantine peers to leave out.
    """
    counts = there.sum(axis=1)
    left_out = np.minimum(f, (counts - 1) // 2)
    padded = np.where(there[:, :, None], sketches, np.inf)
    medians = np.sort(padded, axis=1)[np.arange(len(counts)), counts // 2][:, None]
    apart = np.where(there, ((sketches - medians) ** 2).sum(axis=2), np.inf)
    ranks = np.argsort(np.argsort(apart, axis=1, kind="stable"), axis=1)
    kept = ranks < (counts - left_out)[:, None]
    number = kept.sum(axis=1)
    weights = kept[:, :, None] / number[:, None, None]
    means = (sketches * weights).sum(axis=1, keepdims=True)
    distances = (((sketches - means) ** 2) * weights).sum(axis=(1, 2))
    norms = ((sketches**2) * weights).sum(axis=(1, 2))
    ratios = np.sqrt(distances / np.where(norms > 0, norms, 1.0))
    return np.where(number < 2, np.nan, np.where(norms > 0, ratios, 0.0))
