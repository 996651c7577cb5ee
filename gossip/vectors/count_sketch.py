"""Sketches of vectors, from which distances between the parameters of peers are estimated."""

from __future__ import annotations

import functools
import random

import numpy as np

from .arrays import ByteArray, Vector

SKETCH_SIZE = 128


_SKETCH_CHUNK = 2**18


def sketch(flat: Vector, seed: int, size: int = SKETCH_SIZE) -> bytes:
    """Return the count sketch of a vector: each element is added, with a random sign, to a randomly
    chosen one of ``size`` sums.

    The sketch is linear, and preserves the squared Euclidean norm in expectation (relative standard
    deviation about sqrt(2 / size)). So the distance between two vectors can be estimated from their
    sketches.

    Args:
        flat: ``(d,)`` float32.
        seed: Seed of the random choices. It must be equal for all sketches that are compared.
        size: Number of sums, at most 128.
    Returns: ``size`` float32 values, as bytes.
    Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams".
    """
    assert 0 < size <= 128
    places = _places(len(flat), seed, size)
    sums = np.zeros(256)
    # The loop limits the memory in use: bincount converts both arguments to wider types.
    for start in range(0, len(flat), _SKETCH_CHUNK):
        stop = start + _SKETCH_CHUNK
        sums += np.bincount(places[start:stop], weights=flat[start:stop], minlength=256)
    return (sums[:size] - sums[128 : 128 + size]).astype(np.float32).tobytes()


@functools.lru_cache(maxsize=4)
def _places(elements: int, seed: int, size: int) -> ByteArray:
    """Return one random byte for each element. The highest bit is the sign, and the other bits are
    the index of the sum."""
    drawn = np.frombuffer(random.Random(f"sketch/{seed}").randbytes(elements), np.uint8)
    if size == 128:
        return drawn
    return ((drawn & 127) % size + (drawn & 128)).astype(np.uint8)
