"""How the flat vector is cut in shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from .encoding import Shape, bytes_for

SHARD_BYTES = 2**20
"""Size in bytes from which on a vector has several servers, which work at the same time. A shard
needs a message each way between a server and its clients; a megabyte of four updates takes as long
to average."""

SUMMED_SHARD_BYTES = 4 * 2**20
"""The same on one host, for a rule that adds up. No link is shared there. A further shard takes
each peer about as long as adding up four megabytes less saves (``gossip bench exchange``). Two
peers use ``SHARD_BYTES``: if both serve, neither waits for the other."""

CROSS_SHARD_BYTES = 4 * 2**20
"""The same if shards decide together, which takes another message each way."""

SHARD_ALIGNMENT = 16  # elements: 64 bytes


def shard_sizes(
    elements: int,
    peers: int,
    whole_vector: bool,
    *,
    cross_shard: bool = False,
    summed_here: bool = False,
) -> tuple[int, ...]:
    """Return the sizes of the shards of the flat vector. They depend only on the settings of the
    run and the model, so they are the same on every peer.

    Args:
        peers: The run's configured number of peers, dead or alive.
        whole_vector: The rule needs the vector in one piece.
        cross_shard: The shards decide together, so ``whole_vector`` does not count. The first
            shard, which all peers wait for, is as short as possible.
        summed_here: The rule adds up, and peers of one host read each other's memory.
    Returns: Lengths in elements, all but the last multiples of 16. There is one shard up to 1 MiB,
        else as many as keep each at about 1 MiB, but at most ``peers``. The size is 4 MiB if shards
        decide together, or are ``summed_here`` by more than two.
    """
    assert elements > 0
    if not cross_shard:
        shard_bytes = SUMMED_SHARD_BYTES if summed_here and peers > 2 else SHARD_BYTES
        return (elements,) if whole_vector else _even(elements, peers, shard_bytes)
    if bytes_for(elements) <= CROSS_SHARD_BYTES or peers == 1:
        return (elements,)
    rest = _even(elements - SHARD_ALIGNMENT, peers, CROSS_SHARD_BYTES)
    return (SHARD_ALIGNMENT, *rest)


def _even(elements: int, peers: int, shard_bytes: int) -> tuple[int, ...]:
    """Return the sizes of parts of about ``shard_bytes`` or more, at most ``peers`` of them."""
    count = min(peers, -(-bytes_for(elements) // shard_bytes))
    size = -(-elements // (count * SHARD_ALIGNMENT)) * SHARD_ALIGNMENT
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ())


def matrix_of(shape: Shape) -> tuple[int, int]:
    """Return rows and columns. A shape with one dimension is one row. If there are more than two,
    the first one has the rows: a convolution kernel has one for each output channel."""
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))


def pack_shapes(shapes: tuple[Shape, ...]) -> bytes:
    """Return the shapes as matrices, for ``unpack_shapes``: 8 bytes a tensor."""
    return np.array([matrix_of(shape) for shape in shapes], np.uint32).tobytes()


def unpack_shapes(packed: bytes) -> tuple[Shape, ...]:
    """Return the shapes that ``pack_shapes`` has packed, each tensor as a matrix."""
    numbers = np.frombuffer(packed, np.uint32).tolist()
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def shapes_within(shapes: tuple[Shape, ...], start: int, stop: int) -> tuple[Shape, ...]:
    """Return the shapes of the parts of tensors that lie from ``start`` to ``stop`` in the flat
    vector; ``shapes`` are those of the whole tensors. A tensor that is cut leaves its whole rows,
    which are a tensor of fewer rows, and the rest of a row before and behind them."""
    bounds = pairwise(accumulate(map(prod, shapes), initial=0))
    found = []
    for shape, (first, last) in zip(shapes, bounds, strict=True):
        begin, end = max(start, first) - first, min(stop, last) - first
        if begin < end:
            found += list(_cut(shape, begin, end))
    return tuple(found)


def _cut(shape: Shape, start: int, stop: int) -> Iterator[Shape]:
    """Return the parts of a tensor between two of its numbers."""
    row = prod(shape[1:])
    whole_from, whole_to = -(-start // row), stop // row
    if whole_from >= whole_to or len(shape) == 1:
        yield (stop - start,)
        return
    if whole_from * row > start:
        yield (whole_from * row - start,)
    yield (whole_to - whole_from, *shape[1:])
    if whole_to * row < stop:
        yield (stop - whole_to * row,)
