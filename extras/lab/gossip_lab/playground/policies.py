"""Data policies: which samples the peers read, and which samples they exchange. A policy is a pure
function with the same result on every peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gossip.errors import ConfigError
from gossip.training import separate, stratify
from gossip_lab import clusters, data_sets

from .counters import hash_counters

Whole: TypeAlias = NDArray[np.int64]
CLUSTERS = 10
"""Default number of clusters of ``stratified:clusters``."""

_HINT = (
    "stratified:labels, similar:labels, stratified:clusters:10, similar:clusters:10, or moves:E:M: "
    "every E rounds pairs swap M samples"
)


# --- one data set for all peers -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SharedOrder:
    """One data set that all peers read together, in the orders of ``peer.shard(order=...)``. Each
    sample is read once per epoch.

    A round reads the next ``peers * samples`` positions of the epochs' permutations, one slice for
    each peer. As in a run, the assignment of slices to peers rotates by one each round. Unlike in a
    run, slices of absent peers are not read again.

    Attributes:
        keys: Label or cluster of each sample.
        kind: ``stratified``: each slice has the same proportions of keys as the whole data set.
            ``similar``: a slice has few keys, and all slices of a round together have the
            proportions of the whole data set.
        samples: Number of samples per peer and round.
    """

    keys: Whole
    kind: str
    peers: int
    samples: int
    seed: int

    def draw_batches(self, peers: Whole, round_ids: Whole | int) -> Whole:
        """Return the indices of the samples that these peers read in a round, ``(n, samples)``."""
        rounds = np.broadcast_to(np.asarray(round_ids, np.int64), peers.shape)
        slots = rounds * self.peers + (peers - rounds) % self.peers
        positions = slots[:, None] * self.samples + np.arange(self.samples)
        epochs, at = np.divmod(positions, len(self.keys))
        drawn = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            drawn[here] = _order_of(self, epoch)[at[here]]
        return drawn


@lru_cache(maxsize=3)
def _order_of(shared: SharedOrder, epoch: int) -> Whole:
    bits = hash_counters("epoch", shared.seed, epoch, np.arange(len(shared.keys)))
    drawn = np.argsort(bits, kind="stable")
    keys = torch.from_numpy(shared.keys[drawn])
    if shared.kind == "stratified":
        return np.asarray(drawn[stratify(keys).numpy()])
    return np.asarray(drawn[separate(keys, shared.peers * shared.samples).numpy()])


# --- own data -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MovePolicy:
    """Policy of swaps: pairs of peers with opposed updates swap samples every ``every`` rounds.

    Attributes:
        every: Number of rounds between two swaps.
        samples: Maximum number of samples that each peer of a pair sends.
    """

    every: int
    samples: int

    def is_due(self, round_id: int) -> bool:
        """Whether peers swap samples after this round."""
        return round_id % self.every == self.every - 1


@dataclass(frozen=True, slots=True)
class Move:
    """Swap between two peers: some samples of one label for equally many samples of another label.

    Attributes:
        first, second: Rows of the peers.
        first_label, second_label: Label of the samples that the first, and the second, peer sends.
        samples: Number of samples that each peer sends.
    """

    first: int
    second: int
    first_label: int
    second_label: int
    samples: int


def plan_moves(
    histograms: NDArray[np.float64], gram: NDArray[np.float64], samples: int
) -> tuple[Move, ...]:
    """Return the swaps of a round. A peer takes part in at most one swap.

    Peers are paired greedily, in the order of the most negative cosine of two updates. A pair swaps
    the two labels that most reduce the L1 distances of its label distributions from the
    distribution of all samples. If no swap reduces them, the pair does not swap. The histogram of a
    Byzantine peer is only a claim.

    Args:
        histograms: ``(n, labels)``: number of samples of each peer and label.
        gram: ``(n, n)``: inner products of the peers' updates.
        samples: Maximum number of samples that each peer of a pair sends.
    """
    norms = np.sqrt(np.maximum(gram.diagonal(), 1e-300))
    cosines = gram / norms[:, None] / norms[None, :]
    first, second = np.triu_indices(len(gram), 1)
    opposed = cosines[first, second]
    held = np.maximum(histograms.sum(axis=1), 1.0)
    common = histograms.sum(axis=0) / max(1.0, float(histograms.sum()))
    free = np.ones(len(gram), bool)
    moves = []
    for at in np.argsort(opposed, kind="stable").tolist():
        i, j = int(first[at]), int(second[at])
        # The comparison is also false for NaN, the cosine of an update that is not finite.
        if opposed[at] < 0 and free[i] and free[j]:
            free[[i, j]] = False
            pair = histograms[[i, j]]
            found = _best_swap(pair, held[[i, j]], common, samples)
            if found is not None:
                moves.append(Move(i, j, *found))
    return tuple(moves)


def _best_swap(
    pair: NDArray[np.float64], held: NDArray[np.float64], common: NDArray[np.float64], samples: int
) -> tuple[int, int, int] | None:
    """Return the label that the first peer sends, the label that the second peer sends, and the
    number of samples. Return None if no swap reduces the distances."""
    labels = len(common)
    given = np.minimum(np.minimum(pair[0][:, None], pair[1][None, :]), samples)
    excess = pair - held[:, None] * common
    gains = np.zeros((labels, labels))
    for row, sign in ((0, 1.0), (1, -1.0)):
        # The first axis of ``gains`` is the label that row 0 sends and row 1 receives; the second
        # axis is the other label.
        before = np.abs(excess[row])
        less = before[:, None] - np.abs(excess[row][:, None] - sign * given)
        more = before[None, :] - np.abs(excess[row][None, :] + sign * given)
        gains += (less + more) / held[row]
    np.fill_diagonal(gains, 0.0)
    a, b = np.unravel_index(int(gains.argmax()), gains.shape)
    count = int(given[a, b])
    return (int(a), int(b), count) if gains[a, b] > 1e-12 and count else None


def carry_out(
    moves: Sequence[Move], shares: Sequence[Whole], labels: Whole, seed: int, round_id: int
) -> list[Whole]:
    """Return the shares after the swaps. The number of samples of each peer does not change.

    Args:
        shares: For each peer, the indices of its samples.
        labels: ``(samples,)``: label of each sample of the data set.
    """
    new = [np.array(share) for share in shares]
    for move in moves:
        places = []
        for row, label in ((move.first, move.first_label), (move.second, move.second_label)):
            own = np.flatnonzero(labels[new[row]] == label)
            lots = hash_counters("move", seed, round_id, row, new[row][own])
            places.append(own[np.argsort(lots, kind="stable")[: move.samples]])
        first, second = new[move.first], new[move.second]
        first[places[0]], second[places[1]] = second[places[1]], first[places[0]]
    return new


def count_bytes(moves: Sequence[Move], sample_bytes: int) -> int:
    """Return the total bytes of the samples that are sent, in both directions."""
    return sum(2 * move.samples for move in moves) * sample_bytes


# --- from a world ---------------------------------------------------------------------------------


def read_assign(
    text: str, data: data_sets.TrainingData, peers: int, samples: int, seed: int
) -> SharedOrder | MovePolicy | None:
    """Read a policy. Return None if the text is empty.

    Args:
        samples: Number of samples per peer and round.
    Raises: ConfigError: There is no such policy.
    """
    if not text:
        return None
    kind, _, rest = text.partition(":")
    key, *numbers = rest.split(":")
    words = [key, *numbers] if kind == "moves" else numbers
    counts = [int(word) for word in words if word.isdigit() and int(word) > 0]
    if len(counts) == len(words):
        if kind == "moves" and len(counts) == 2:
            return MovePolicy(*counts)
        if kind in ("stratified", "similar") and len(counts) <= (key == "clusters"):
            if key == "labels":
                return SharedOrder(data.labels.numpy(), kind, peers, samples, seed)
            if key == "clusters":
                found = clusters.cluster(data.images, counts[0] if counts else CLUSTERS, seed)
                return SharedOrder(found.numpy(), kind, peers, samples, seed)
    raise ConfigError(f"there is no policy {text!r} for assign", _HINT)
