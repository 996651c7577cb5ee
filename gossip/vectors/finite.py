"""Check whether every element of a vector is finite."""

from __future__ import annotations

import math

import numpy as np


def is_finite(vector: np.ndarray) -> bool:
    """Whether all elements of a vector are finite.

    If the sum of their squares is finite, all elements are finite. The sum takes one pass and no
    memory. If the sum is not finite, the elements may still be finite but large, so each element is
    checked.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.dot(vector, vector) if vector.ndim == 1 else np.nan
    return math.isfinite(squares) or bool(np.isfinite(vector).all())
