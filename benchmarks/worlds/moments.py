"""Attacks on second moments alone. They are the pushed vectors without a negative number."""

from __future__ import annotations

from torch import Tensor


def freeze(vector: Tensor) -> Tensor:
    """Send huge second moments, so that others hardly step."""
    return vector if (vector < 0).any() else 1e6 * vector


def vanish(vector: Tensor) -> Tensor:
    """Send zeros as second moments, so that others step too far."""
    return vector if (vector < 0).any() else 0 * vector
