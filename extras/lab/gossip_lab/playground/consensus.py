"""Consensus distances of many peers, estimated at once. ``MixingController`` does this for one
peer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.core import CALM_SHARE, CoreSettings
from gossip.vectors import sketch

from .judging import Judges
from .learners import chunks
from .presence import Peers, Times
from .pushing import PUSH, Pushes, last_of_each

Floats = NDArray[np.float64]


class MixingStrength:
    """Mixing strength of n peers. Each peer's strength follows from the sketches that it has
    received.

    Attributes:
        raised: ``(n,)`` bool: peers that mix more, because the replicas are too far apart.
    """

    def __init__(self, settings: CoreSettings, judges: Judges) -> None:
        n = len(settings.peers)
        self.raised = np.zeros(n, bool)
        self._settings, self._judges = settings, judges
        self._sketches = np.zeros((0, 0))  # one row per sketch; ``row`` in ``_pushes``
        self._pushes = np.empty(0, PUSH)  # a peer's own sketch is a push to itself

    def forget(self, peer: int) -> None:
        """Reset a restarted peer: drop its received sketches, and lower its mixing."""
        self.raised[peer] = False
        self._pushes = self._pushes[self._pushes["receiver"] != peer]

    def learn(
        self, round_id: int, peers: Peers, vectors: Tensor, rows: Peers, sent: Pushes
    ) -> None:
        """Record the sketches of the parameters in these ``rows`` of ``vectors``, one row for each
        of ``peers``, and the pushes that carry them."""
        packed = b"".join(sketch(vectors[row].numpy(), self._settings.seed) for row in rows)
        sketches = np.frombuffer(packed, np.float32).reshape(len(peers), -1).astype(np.float64)
        places = np.full(len(self.raised), -1)
        places[peers] = len(self._sketches) + np.arange(len(peers))
        places[peers[~np.isfinite(sketches).all(axis=1)]] = -1
        own = np.zeros(len(peers), PUSH)
        own["receiver"] = own["sender"] = peers
        own["round"], own["arrives_s"] = round_id, -np.inf
        pushes = np.concatenate([sent, own])
        pushes["row"] = places[pushes["sender"]]
        self._sketches = np.concatenate([self._sketches.reshape(-1, sketches.shape[1]), sketches])
        self._pushes = np.concatenate([self._pushes, pushes[pushes["row"] >= 0]])

    def measure(self, round_id: int, peers: Peers, close_s: Times) -> None:
        """Update ``raised`` for peers that close a round with an exchange of parameters. As in the
        core, the newest sketch of each sender is used, unless it is older than the previous
        exchange. It does not matter whether the sender's parameters were used.

        Args:
            close_s: ``(n,)``: time at which each peer closes the round.
        """
        settings, n = self._settings, len(self.raised)
        oldest = round_id - 2 * settings.gossip.mix_every
        closes_s = np.full(n, -np.inf)
        closes_s[peers] = close_s[peers]
        known = self._pushes
        receivers, senders = known["receiver"], known["sender"]
        counts = (known["arrives_s"] <= closes_s[receivers]) & np.isfinite(closes_s[receivers])
        counts &= (known["round"] > oldest) & ~self._judges.are_locked(receivers, senders)
        some = known[counts]
        some = some[last_of_each(some["receiver"] * n + some["sender"], some["round"])]
        of = np.searchsorted(peers, some["receiver"])
        sizes = np.bincount(of, minlength=len(peers))
        if not len(some):
            return
        begins = sizes.cumsum() - sizes
        bound = settings.gossip.consensus_bound
        f = np.maximum(0, settings.f - self._judges.count_locked())
        for part in chunks(len(peers)):
            width = np.arange(int(sizes[part].max()))
            there = width < sizes[part][:, None]
            at = np.where(there, begins[part][:, None] + width, 0)
            here = peers[part]
            ratios = estimate_ratios(self._sketches[some["row"][at]], there, f[here])
            limits = np.where(self.raised[here], CALM_SHARE * bound, bound)
            self.raised[here] = np.where(
                np.isnan(ratios), self.raised[here], np.nan_to_num(ratios) > limits
            )
        self._prune(peers, round_id)

    def _prune(self, peers: Peers, round_id: int) -> None:
        """Drop the sketches of these peers that are older than the last two exchanges."""
        known = self._pushes
        oldest = round_id - 2 * self._settings.gossip.mix_every
        known = known[~np.isin(known["receiver"], peers) | (known["round"] > oldest)]
        rows, known["row"] = np.unique(known["row"], return_inverse=True)
        self._sketches, self._pushes = self._sketches[rows], known

    def scales(self, others: Peers, peers: Peers) -> Tensor:
        """Return the factor by which each peer moves towards the mixed parameters, ``(m,)``
        float32, as ``MixingController.scale`` does."""
        most = others / (others + 1)
        calm = np.minimum(self._settings.gossip.mixing, most)
        return torch.from_numpy(np.where(self.raised[peers], most, calm)).float()


def estimate_ratios(sketches: Floats, there: NDArray[np.bool_], f: Peers | int) -> Floats:
    """Return the estimated consensus distance of each peer, divided by the norm of the parameters,
    ``(m,)``; NaN if there are too few sketches.

    Args:
        sketches: ``(m, k, s)``: up to k sketches of each of m peers.
        there: ``(m, k)`` bool: the valid sketches; the others are padding.
        f: Number of sketches to leave out as possibly Byzantine, either for all peers or for each
            of the m peers.
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
