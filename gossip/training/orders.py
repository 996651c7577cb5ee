"""Orders the samples of an epoch by labels: permutations with contiguous slices that are similar or
complementary. Each is a function of labels and a permutation, the same on every peer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from gossip.errors import ConfigError, UnknownName

ORDERS = ("stratified:labels", "similar:labels")


def stratify(labels: Tensor) -> Tensor:
    """Return an order in which each slice has every label in its overall proportion, within about
    two samples. Samples of one label keep their order.

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
        block: Samples of a block, such as those of a round of all peers.
    """
    order = stratify(labels)
    by_label = labels[order].argsort(stable=True)
    return order[by_label[(by_label // block).argsort(stable=True)]]


def arrange(kind: str, labels: Tensor, block: int) -> Tensor:
    """Return the order of samples with these labels by one of ``ORDERS``."""
    return stratify(labels) if kind == ORDERS[0] else separate(labels, block)


def labels_for(kind: str, dataset: Any) -> Tensor:
    """Return the labels of a data set for its order, ``(n,)`` int64.

    They are its ``targets``, or the second tensor of a ``TensorDataset``; a ``Subset`` uses those
    of its data set.

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
    except (TypeError, ValueError, RuntimeError):  # such as names
        return None
