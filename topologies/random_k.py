"""Random-k gossip: in each round, each peer pushes to k random peers. The seed is shared, so every
peer can compute which peers send to it."""

from __future__ import annotations

from random import Random

from gossip.errors import ConfigError

from .base import Plan, Roster, draw, topology


def default_k(n: int) -> int:
    """Return ceil(log2 n), at least 1. Information then reaches all peers in about as many
    rounds."""
    return max(1, (n - 1).bit_length())


@topology
def random_k(roster: Roster, round_id: int, seed: int, *, k: int | None = None) -> Plan:
    """In each round, each peer pushes to k random peers and receives from k random peers (Boyd et
    al. 2006).

    The peers are put on a ring in random order, and all push along the same k distinct random
    distances: k disjoint cyclic shifts. So all peers receive equally often, and each
    peer pushes to k different peers.

    Args:
        k: Number of receivers of each peer, at most n - 1; ceil(log2 n) by default.
    """
    if k is not None and (not isinstance(k, int) or k < 1):
        raise ConfigError(f"random_k: k must be a whole number of at least 1, not {k!r}")
    n = len(roster)
    if n < 2:
        return Plan(pushes=dict.fromkeys(roster.peers, ()))
    random = Random(draw(seed, roster.lineage, round_id, "random_k"))
    ring = sorted(roster.peers)
    random.shuffle(ring)
    shifts = random.sample(range(1, n), min(default_k(n) if k is None else k, n - 1))
    return Plan(
        pushes={
            peer: tuple(sorted(ring[(at + shift) % n] for shift in shifts))
            for at, peer in enumerate(ring)
        }
    )
