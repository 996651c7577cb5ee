"""Fixed graphs other than rings, and fixed sequences of graphs."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from gossip.errors import ConfigError

from .base import Plan, Roster, draw, topology
from .random_k import default_k

SWAPS = 10
"""Number of attempts per chord to swap two chords. After so many attempts, the graph hardly depends
on the initial lattice (Milo et al. 2003, arXiv:cond-mat/0312028)."""


@topology
def full(roster: Roster, round_id: int, seed: int) -> Plan:
    """Each peer pushes to every other peer. This is the most robust topology, and costs n - 1
    payloads per peer and round."""
    order = sorted(roster.peers)
    return Plan(pushes={peer: tuple(other for other in order if other != peer) for peer in order})


@topology
def static_regular(roster: Roster, round_id: int, seed: int, *, k: int | None = None) -> Plan:
    """Each peer exchanges with the same k peers in all rounds. The random regular graph follows
    from the seed, and changes when the roster changes.

    The graph is a ring of the peers in random order, with additional random chords (Robinson,
    Wormald 1994, "Almost All Regular Graphs Are Hamiltonian"). The ring makes it connected.

    Args:
        k: Neighbours of each peer, from 2 to n - 1; ceil(log2 n) by default. If k and n are odd, no
            such graph exists, and each peer has k + 1 neighbours.
    """
    if k is not None and (not isinstance(k, int) or k < 2):
        raise ConfigError(f"static_regular: k must be a whole number of at least 2, not {k!r}")
    n = len(roster)
    degree = min(max(2, default_k(n)) if k is None else k, n - 1)
    return _regular(
        tuple(sorted(roster.peers)),
        degree + degree * n % 2,
        draw(seed, roster.lineage, "static_regular"),
    )


@lru_cache(maxsize=8)
def _regular(peers: tuple[int, ...], degree: int, seed: int) -> Plan:
    random, n = Random(seed), len(peers)
    ring = random.sample(peers, n)
    pairs = [(at, (at + hop) % n) for hop in range(1, degree // 2 + 1) for at in range(n)]
    pairs += [(at, at + n // 2) for at in range(n // 2) if degree % 2]
    linked = {*pairs, *[(b, a) for a, b in pairs]}
    chords = pairs[n:]
    for _ in range(SWAPS * len(chords)):
        first, second = random.randrange(len(chords)), random.randrange(len(chords))
        (a, b), (c, d) = chords[first], random.sample(chords[second], 2)
        if len({a, b, c, d}) == 4 and not linked.intersection([(a, d), (c, b)]):
            linked -= {(a, b), (b, a), (c, d), (d, c)}
            linked |= {(a, d), (d, a), (c, b), (b, c)}
            chords[first], chords[second] = (a, d), (c, b)
    pushes: dict[int, list[int]] = {peer: [] for peer in peers}
    for a, b in linked:
        pushes[ring[a]].append(ring[b])
    return Plan(pushes={peer: tuple(sorted(targets)) for peer, targets in pushes.items()})


@topology
def exponential(roster: Roster, round_id: int, seed: int, *, static: bool = False) -> Plan:
    """In each round, each peer pushes to the peer that is 1, 2, 4, ... places after it, with
    another
    power of two per round (one-peer exponential graph, Ying et al. 2021, arXiv:2110.13363).

    If n is a power of two, log2 n successive rounds compute the exact average. The order of the
    powers is random in each cycle. With a fixed order, all rounds that mix parameters, such as
    every fourth round, could have the same power.

    Args:
        static: Whether each peer pushes to the peers at all powers of two in every round.
    """
    order = sorted(roster.peers)
    n = len(order)
    hops = [1 << power for power in range((n - 1).bit_length())]
    if hops and not static:
        cycle, at = divmod(round_id, len(hops))
        Random(draw(seed, roster.lineage, cycle, "exponential")).shuffle(hops)
        hops = [hops[at]]
    return Plan(
        pushes={
            peer: tuple(sorted(order[(at + hop) % n] for hop in hops))
            for at, peer in enumerate(order)
        }
    )
