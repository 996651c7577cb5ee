"""Sketches of vectors: a few numbers, from which distances between peers are estimated."""

from __future__ import annotations

import functools
import random

import numpy as np
from numpy.typing import NDArray

SKETCH_SIZE = 128


_SKETCH_CHUNK = 2**18


def sketch(flat: NDArray[np.float32], seed: int, size: int = SKETCH_SIZE) -> bytes:
    """Return a count-sketch: each element is added, with a random sign, to one of ``size`` sums,
    which is chosen at random.

    It is linear, and preserves the squared Euclidean norm in expectation (relative deviation about
    sqrt(2 / size)). So distances between peers can be estimated from their sketches.

    Args:
        flat: ``(d,)`` float32.
        seed: Seed of the random choices. It must be equal for all sketches that are compared.
        size: Number of sums, at most 128.
    Returns: ``size`` float32 numbers, as bytes.
    Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams".
    """
    assert 0 < size <= 128
    places = _places(len(flat), seed, size)
    sums = np.zeros(256)
    # In pieces, because bincount converts both arguments to wider types.
    for start in range(0, len(flat), _SKETCH_CHUNK):
        stop = start + _SKETCH_CHUNK
        sums += np.bincount(places[start:stop], weights=flat[start:stop], minlength=256)
    return (sums[:size] - sums[128 : 128 + size]).astype(np.float32).tobytes()


@functools.lru_cache(maxsize=4)
def _places(elements: int, seed: int, size: int) -> NDArray[np.uint8]:
    """Return one byte for each element: the index of its sum, and its sign in the highest bit."""
    drawn = np.frombuffer(random.Random(f"sketch/{seed}").randbytes(elements), np.uint8)
    if size == 128:
        return drawn
    return ((drawn & 127) % size + (drawn & 128)).astype(np.uint8)
