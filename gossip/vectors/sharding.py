"""Division of the flat vector into shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from .encoding import Shape, bytes_for

SHARD_BYTES = 2**20
"""Size of a vector, in bytes, above which it is divided into shards. Each shard has its own server,
and the servers work in parallel. Each shard needs a message in each direction between its server
and every other peer. This takes about as long as averaging four updates of one megabyte."""

SUMMED_SHARD_BYTES = 4 * 2**20
"""Size instead of ``SHARD_BYTES`` on one host, for a rule that adds up updates. There, an
additional shard costs a peer about as much time as adding up four megabytes (``gossip bench
exchange``), so smaller shards save no time. Two peers use ``SHARD_BYTES``: if both serve, neither
waits for the other."""

CROSS_SHARD_BYTES = 4 * 2**20
"""Size instead of ``SHARD_BYTES`` for cross-shard decisions, which need another message in each
direction."""

SHARD_ALIGNMENT = 16  # elements, which are 64 bytes


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
        peers: Number of peers in the settings of the run, including dead peers.
        whole_vector: Whether the rule needs the whole vector.
        cross_shard: Whether the shards decide together. ``whole_vector`` is then ignored, and the
            first shard is as short as possible, because all peers wait for it.
        summed_here: Whether the rule adds up updates, and all peers are on one host and read each
            other's memory.
    Returns: Lengths in elements; all but the last are multiples of 16. A vector of up to 1 MiB has
    one shard. A larger vector has at most ``peers`` shards of about 1 MiB or more. For cross-shard
    decisions, and for more than two peers with ``summed_here``, 4 MiB replace 1 MiB.
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
    """Return the sizes of at most ``peers`` parts of about equal size. A part has about
    ``shard_bytes`` or more."""
    count = min(peers, -(-bytes_for(elements) // shard_bytes))
    size = -(-elements // (count * SHARD_ALIGNMENT)) * SHARD_ALIGNMENT
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ())


def matrix_of(shape: Shape) -> tuple[int, int]:
    """Return the numbers of rows and columns of a tensor that is viewed as a matrix. The first
    dimension has the rows: a convolution kernel has a row for each output channel. A tensor of one
    dimension is a single row."""
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))


def pack_shapes(shapes: tuple[Shape, ...]) -> bytes:
    """Pack each tensor's shape as a matrix (``matrix_of``) into 8 bytes. ``unpack_shapes`` is the
    inverse."""
    return np.array([matrix_of(shape) for shape in shapes], np.uint32).tobytes()


def unpack_shapes(packed: bytes) -> tuple[Shape, ...]:
    """Return the shapes in the bytes from ``pack_shapes``. Each shape is that of a matrix."""
    numbers = np.frombuffer(packed, np.uint32).tolist()
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def shapes_within(shapes: tuple[Shape, ...], start: int, stop: int) -> tuple[Shape, ...]:
    """Return the shapes of the parts of tensors between the offsets ``start`` and ``stop`` in the
    flat vector. ``shapes`` has the shapes of the whole tensors. If only a part of a tensor is in
    the range, the part is divided into its complete rows, which form a tensor, and the incomplete
    rows before and after."""
    bounds = pairwise(accumulate(map(prod, shapes), initial=0))
    found = []
    for shape, (first, last) in zip(shapes, bounds, strict=True):
        begin, end = max(start, first) - first, min(stop, last) - first
        if begin < end:
            found += list(_cut(shape, begin, end))
    return tuple(found)


def _cut(shape: Shape, start: int, stop: int) -> Iterator[Shape]:
    """Yield the shapes of the parts of a tensor between two offsets in the tensor."""
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
