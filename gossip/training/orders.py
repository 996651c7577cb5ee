"""Orders the samples of an epoch by labels, so that contiguous slices have similar or complementary
labels. The order depends only on labels and a permutation, so it is the same on every peer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from gossip.errors import ConfigError, UnknownName

ORDERS = ("stratified:labels", "similar:labels")


def stratify(labels: Tensor) -> Tensor:
    """Return a stratified order: every slice has the label proportions of the whole data set,
    within about two samples per label. Samples with the same label stay in order.

    Args:
        labels: ``(n,)`` whole numbers, such as classes or clusters.
    Returns: ``(n,)``, a permutation of positions in ``labels``.
    """
    _, at, counts = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    by_label = np.argsort(at, kind="stable")
    ranks = np.empty(len(at))
    ranks[by_label] = np.arange(len(at)) - (counts.cumsum() - counts)[at[by_label]]
    # the r-th sample of a label belongs at the fraction (r + 1/2) / count of the order
    return torch.from_numpy(np.argsort((ranks + 0.5) / counts[at], kind="stable"))


def separate(labels: Tensor, block: int) -> Tensor:
    """Return an order of stratified blocks: each block has the label proportions of the whole data
    set, and is sorted by label. So slices of a block complement each other.

    Args:
        labels: ``(n,)`` whole numbers.
        block: Number of samples in a block, such as the samples of all peers in a round.
    """
    order = stratify(labels)
    by_label = labels[order].argsort(stable=True)
    return order[by_label[(by_label // block).argsort(stable=True)]]


def arrange(kind: str, labels: Tensor, block: int) -> Tensor:
    """Return the order ``kind``, one of ``ORDERS``, of samples with these labels."""
    return stratify(labels) if kind == ORDERS[0] else separate(labels, block)


def labels_for(kind: str, dataset: Any) -> Tensor:
    """Return the labels by which a data set is ordered, ``(n,)`` int64.

    Labels are the attribute ``targets`` of the data set, or the second tensor of a
    ``TensorDataset``. A ``Subset`` has the labels of the data set inside it.

    Raises: ConfigError: There is no such order, or the data set has no label for each sample.
    """
    if kind not in ORDERS:
        raise UnknownName("order", kind, ORDERS)
    labels = _labels(dataset)
    if labels is None or labels.is_floating_point() or labels.shape != (len(dataset),):
        raise ConfigError(
            f"order {kind}: the {type(dataset).__name__} does not have a whole number as the "
            "label of each sample",
            "add an attribute targets, with the class of each sample",
        )
    return labels.long()


def _labels(dataset: Any) -> Tensor | None:
    if isinstance(dataset, Subset):
        labels = _labels(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices)]
    targets: Any = getattr(dataset, "targets", None)
    if targets is None and isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        targets = dataset.tensors[1]
    try:
        return None if targets is None else torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):  # for example, the targets are names
        return None
