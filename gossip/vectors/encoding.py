"""How a vector becomes the bytes of a payload, and they a vector again: float32, as it lies in
memory.

Nobody else knows that. The digest of a payload is of these bytes. A packed state is bytes already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .finite import is_finite

NUMBER_BYTES = 4


def bytes_for(elements: int) -> int:
    """How many bytes a vector of so many elements becomes."""
    return NUMBER_BYTES * elements


def to_bytes(vector: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of a contiguous vector or of a packed state; not copied where they are the memory
    itself."""
    return np.frombuffer(vector, dtype=np.uint8)


def from_bytes(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The vector of whole numbers that these bytes are; not copied where it is the same memory."""
    return raw.view(np.float32)


def are_finite(raw: NDArray[np.uint8]) -> bool:
    """Whether these bytes are whole numbers, and each of them is finite."""
    return len(raw) % NUMBER_BYTES == 0 and is_finite(from_bytes(raw))
