"""Whether every number of a vector is finite."""

from __future__ import annotations

import numpy as np


def is_finite(vector: np.ndarray) -> bool:
    """Whether all numbers are finite. Quicker than their sum,
    which takes a guard against warnings of an overflow."""
    return bool(np.isfinite(vector).all())
