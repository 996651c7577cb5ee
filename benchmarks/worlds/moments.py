"""Attacks on second moments alone. A pushed vector without a negative element is taken for second
moments."""

from __future__ import annotations

from torch import Tensor


def freeze(vector: Tensor) -> Tensor:
    """Send huge second moments, so that other peers make very small steps."""
    return vector if (vector < 0).any() else 1e6 * vector


def vanish(vector: Tensor) -> Tensor:
    """Send zeros as second moments, so that other peers make too large steps."""
    return vector if (vector < 0).any() else 0 * vector
