"""Check that every number of a vector is finite."""

from __future__ import annotations

import math

import numpy as np


def is_finite(vector: np.ndarray) -> bool:
    """Whether all numbers are finite.

    The sum of their squares is finite only if all numbers are. The sum takes one pass and no
    memory. If it is not finite, the numbers may still be finite but large, so each number is then
    checked.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.dot(vector, vector) if vector.ndim == 1 else np.nan
    return math.isfinite(squares) or bool(np.isfinite(vector).all())
