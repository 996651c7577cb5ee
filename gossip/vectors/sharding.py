"""How the flat vector is cut in shards."""

from __future__ import annotations

from .encoding import bytes_for

SHARD_BYTES = 2**20
"""From here on a vector has several servers, which work at the same time. A shard costs a server
and its clients a message each way; a megabyte of four updates takes as long to average."""

CROSS_SHARD_BYTES = 4 * 2**20
"""The same where shards decide together, which takes another message each way."""

SHARD_ALIGNMENT = 16  # elements: 64 bytes


def shard_sizes(
    elements: int, peers: int, whole_vector: bool, *, cross_shard: bool = False
) -> tuple[int, ...]:
    """How the flat vector is cut. The same on every peer:
    nothing but the run's settings and the model goes in.

    Args:
        peers: The run's configured number of peers, dead or alive.
        whole_vector: The rule needs the vector in one piece.
        cross_shard: Unless its shards decide together. Then a first one, which everybody waits
            for, is as short as can be.
    Returns: lengths in elements, all but the last multiples of 16: one up to 1 MiB, then
        as many as keep each at about 1 MiB, but at most ``peers``. 4 MiB where they decide
        together.
    """
    assert elements > 0
    if not cross_shard:
        return (elements,) if whole_vector else _even(elements, peers, SHARD_BYTES)
    if bytes_for(elements) <= CROSS_SHARD_BYTES or peers == 1:
        return (elements,)
    rest = _even(elements - SHARD_ALIGNMENT, peers, CROSS_SHARD_BYTES)
    return (SHARD_ALIGNMENT, *rest)


def _even(elements: int, peers: int, shard_bytes: int) -> tuple[int, ...]:
    """Parts of about ``shard_bytes`` or more, at most ``peers`` of them."""
    count = min(peers, -(-bytes_for(elements) // shard_bytes))
    size = -(-elements // (count * SHARD_ALIGNMENT)) * SHARD_ALIGNMENT
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ())
