"""Lengths of vectors of any magnitude, and the working precision of a dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor

HUGE = 1e300  # Replaces larger values, so that the sum of a few such values stays finite.
HUGE_FACTOR = 1e130  # Replaces larger factors, so that the product of two factors stays finite.
# A larger square may come from an element that was clipped to HUGE_FACTOR.
CUT_SQUARE = HUGE_FACTOR**1.9
# Largest element of a float64 update for rules that use distances. The difference of two elements
# is then below HUGE_FACTOR, so it is not clipped.
LARGEST = 1e123
TINY_NORM = 1e-15  # In shorter vectors, float32 squares of elements lose digits or become 0.
FLOAT32_MAX = torch.finfo(torch.float32).max
BLOCK_ELEMENTS = 2**19


def working_dtype(tensor: Tensor) -> torch.dtype:
    """Return float64 for float64, else float32: half precision is only a storage format."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def is_too_large(vector: Tensor) -> bool:
    """Whether a finite float64 vector has an element beyond ``LARGEST``. False for other
    dtypes."""
    return vector.dtype == torch.float64 and LARGEST < float(vector.abs().max()) < math.inf


def norm(vector: Tensor) -> float:
    """Return the Euclidean norm of a vector of any magnitude; at most ``HUGE``."""
    work = working_dtype(vector)
    if len(vector) <= BLOCK_ELEMENTS:
        quick = float(torch.linalg.vector_norm(vector, dtype=work))
    else:
        parts = torch.split(vector, BLOCK_ELEMENTS)
        quick = math.hypot(*[float(torch.linalg.vector_norm(part, dtype=work)) for part in parts])
    if TINY_NORM < quick < FLOAT32_MAX:
        return quick
    largest = float(torch.linalg.vector_norm(vector, float("inf"), dtype=torch.float64))
    if largest == 0.0:
        return 0.0
    if not largest < HUGE:
        return HUGE
    return min(HUGE, largest * float(torch.linalg.vector_norm(vector.to(torch.float64) / largest)))


def resolution(vector: Tensor) -> float:
    """Return the distance that rounding alone can cause between two equal vectors with the norm and
    the dtype of ``vector``."""
    return 4 * float(torch.finfo(vector.dtype).eps) * norm(vector)
