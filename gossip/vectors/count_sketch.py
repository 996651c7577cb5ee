"""Sketches of vectors, from which distances between the parameters of peers are estimated."""

from __future__ import annotations

import functools
import random

import numpy as np

from .arrays import ByteArray, Vector

SKETCH_SIZE = 128


_SKETCH_CHUNK = 2**18


def sketch(flat: Vector, seed: int) -> bytes:
    """Return the count sketch of a vector: each element is added, with a random sign, to a randomly
    chosen one of 128 sums.

    The sketch is linear, and preserves the squared Euclidean norm in expectation (relative standard
    deviation about sqrt(2 / 128)). So the distance between two vectors can be estimated from their
    sketches.

    Args:
        flat: ``(d,)`` float32.
        seed: Seed of the random choices. It must be equal for all sketches that are compared.
    Returns: 128 float32 values, as bytes.
    Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams".
    """
    places = _places(len(flat), seed)
    sums = np.zeros(2 * SKETCH_SIZE)
    # The loop limits the memory in use: bincount converts both arguments to wider types.
    for start in range(0, len(flat), _SKETCH_CHUNK):
        stop = start + _SKETCH_CHUNK
        sums += np.bincount(places[start:stop], weights=flat[start:stop], minlength=2 * SKETCH_SIZE)
    return (sums[:SKETCH_SIZE] - sums[SKETCH_SIZE:]).astype(np.float32).tobytes()


@functools.lru_cache(maxsize=4)
def _places(elements: int, seed: int) -> ByteArray:
    """Return one random byte for each element. The highest bit is the sign, and the other bits are
    the index of the sum."""
    return np.frombuffer(random.Random(f"sketch/{seed}").randbytes(elements), np.uint8)
