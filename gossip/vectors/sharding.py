"""How the flat vector is cut in shards."""

from __future__ import annotations

from .encoding import bytes_for

SHARD_BYTES = 4 * 2**20


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
    Returns: lengths in elements, all but the last multiples of 16: one up to 4 MiB, then
        as many as keep each at about 4 MiB, but at most ``peers``.
    """
    assert elements > 0
    count = min(peers, -(-bytes_for(elements) // SHARD_BYTES))
    if (whole_vector and not cross_shard) or count <= 1:
        return (elements,)
    if cross_shard:
        return (SHARD_ALIGNMENT, *shard_sizes(elements - SHARD_ALIGNMENT, peers, False))
    size = -(-elements // (count * SHARD_ALIGNMENT)) * SHARD_ALIGNMENT
    full, rest = divmod(elements, size)
    return (size,) * full + ((rest,) if rest else ())
