"""Division of the flat vector into shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from .encoding import Shape, bytes_for

SHARD_BYTES = 2**20
"""Size in bytes above which a vector has several servers, which work in parallel. A shard needs a
message in each direction between its server and each client. That takes about as long as the
average of four updates of one megabyte."""

SUMMED_SHARD_BYTES = 4 * 2**20
"""The same size on one host, for a rule that adds up updates. No link is shared there. For each
peer, a further shard takes about as long as it saves by adding up four megabytes less
(``gossip bench exchange``). Two peers use ``SHARD_BYTES``: if both serve, neither waits for the
other."""

CROSS_SHARD_BYTES = 4 * 2**20
"""The same size for cross-shard decisions, which need another message in each direction."""

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
    run and on the model, so they are equal on every peer.

    Args:
        peers: Configured number of peers of the run, whether dead or alive.
        whole_vector: The rule needs the whole vector.
        cross_shard: The shards decide together, so ``whole_vector`` is ignored. The first shard,
            which all peers wait for, is as short as possible.
        summed_here: The rule adds up updates, and peers on one host read each other's memory.
    Returns: Lengths in elements; all but the last are multiples of 16. Up to 1 MiB there is one
        shard. Otherwise there are at most ``peers`` shards of about 1 MiB or more. The size is 4
        MiB instead for cross-shard decisions, and if more than two peers are ``summed_here``.
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
    """Return the sizes of parts of about ``shard_bytes`` or more. There are at most ``peers``
    parts."""
    count = min(peers, -(-bytes_for(elements) // shard_bytes))
    size = -(-elements // (count * SHARD_ALIGNMENT)) * SHARD_ALIGNMENT
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ())


def matrix_of(shape: Shape) -> tuple[int, int]:
    """Return the numbers of rows and columns of a tensor as a matrix. A tensor of one dimension is
    one row. With more than two dimensions, the first one has the rows: a convolution kernel has a
    row for each output channel."""
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))


def pack_shapes(shapes: tuple[Shape, ...]) -> bytes:
    """Return the shapes as matrices, in 8 bytes for each tensor, for ``unpack_shapes``."""
    return np.array([matrix_of(shape) for shape in shapes], np.uint32).tobytes()


def unpack_shapes(packed: bytes) -> tuple[Shape, ...]:
    """Return the shapes from ``pack_shapes``, each of them as a matrix."""
    numbers = np.frombuffer(packed, np.uint32).tolist()
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def shapes_within(shapes: tuple[Shape, ...], start: int, stop: int) -> tuple[Shape, ...]:
    """Return the shapes of the parts of tensors from ``start`` to ``stop`` in the flat vector.
    ``shapes`` are those of the whole tensors. A tensor that is cut is divided into its whole rows,
    which form a tensor of fewer rows, and the incomplete rows before and after them."""
    bounds = pairwise(accumulate(map(prod, shapes), initial=0))
    found = []
    for shape, (first, last) in zip(shapes, bounds, strict=True):
        begin, end = max(start, first) - first, min(stop, last) - first
        if begin < end:
            found += list(_cut(shape, begin, end))
    return tuple(found)


def _cut(shape: Shape, start: int, stop: int) -> Iterator[Shape]:
    """Yield the shapes of the parts of a tensor between two of its numbers."""
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
