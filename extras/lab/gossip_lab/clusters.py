"""Clusters of samples by their features: k-means, from a seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

STEPS_MAX = 50
FITTED_MAX = 10_000
"""Maximum number of samples used to find the centers. All samples are then assigned to the
centers."""


def cluster(features: Tensor, k: int, seed: int) -> Tensor:
    """Return the cluster of each sample, ``(n,)`` int64, from 0 to ``k - 1``.

    Args:
        features: ``(n, d)``, at least ``k`` samples.
    Source: Arthur, Vassilvitskii 2007, "k-means++" (start); Lloyd 1982 (steps).
    """
    chance = np.random.default_rng(seed)
    points = features.double().numpy()
    some = points[chance.permutation(len(points))[:FITTED_MAX]]
    centers = some[:1]
    while len(centers) < k:
        apart = _squares(some, centers).min(axis=1)
        total = apart.sum()
        # If there are fewer distinct points than clusters, some clusters stay empty.
        chances = apart / total if total > 0 else None
        centers = np.concatenate([centers, some[[chance.choice(len(some), p=chances)]]])
    for _ in range(STEPS_MAX):
        nearest = _squares(some, centers).argmin(axis=1)
        counts = np.bincount(nearest, minlength=k)
        sums = np.zeros_like(centers)
        np.add.at(sums, nearest, some)
        moved = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
        if np.array_equal(moved, centers):
            break
        centers = moved
    return torch.from_numpy(_squares(points, centers).argmin(axis=1))


def _squares(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the squared distances of points and centers, ``(n, k)``. Rounding errors below 0
    become 0."""
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    return np.asarray(np.maximum(squares, 0.0))
