"""Rolling parameter server: each shard of each round has a random server."""

from __future__ import annotations

from collections.abc import Sequence

from gossip.errors import ConfigError

from .base import Plan, Roster, draws, topology
from .weights import lots


@topology(rolling=True)
def rolling(
    roster: Roster, round_id: int, seed: int, *, shards: int = 1, weights: str = ""
) -> Plan:
    """Order the peers for each shard by their lots. A lot is a hash of (seed, lineage, round,
    shard, peer).

    If a peer leaves the roster, the order of the other peers does not change, except for first
    places. With a shuffle it would change. A peer of weight w has w lots, of which the lowest
    counts. So it has the first place, and each later place, w times as often as a peer of weight 1.
    Lots are integers, because logarithms differ between machines.

    Without weights, no peer has two first places in a round before every peer has one, because the
    link of the peer that serves most shards determines the time of a round. With independent lots,
    one of 2 peers served both of 2 shards in every other round, and the busiest of 8 peers served
    2.6 of 8 shards on average. First places are assigned from the last shard on. So if the number
    of shards is one more than a multiple of n, any peer may serve the first shard. With cross-shard
    decisions, that shard is short.

    Args:
        shards: Number of shards of a vector. Each shard has its own order of servers.
        weights: Relative frequency with which each peer serves, as in ``0:4,2:2``; other peers have
            weight 1. ``weights.within_bounds`` limits the weights.
    """
    if not isinstance(shards, int) or shards < 1:
        raise ConfigError(f"rolling: shards must be a whole number of at least 1, not {shards!r}")
    counts = lots(weights, roster.peers)
    weighty = [
        (at, peer, count)
        for at, (peer, count) in enumerate(zip(roster.peers, counts, strict=True))
        if count > 1
    ]

    def order(shard: int) -> tuple[int, ...]:
        drawn = draws((seed, roster.lineage, round_id, shard), roster.peers)
        for at, peer, count in weighty:
            drawn[at] = min(
                drawn[at], *draws((seed, roster.lineage, round_id, shard, peer), range(1, count))
            )
        return tuple([peer for _, peer in sorted(zip(drawn, roster.peers, strict=True))])

    orders = [order(shard) for shard in range(shards)]
    return Plan(servers=tuple(orders) if weighty else _spread(orders))


def _spread(orders: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the orders with first places that are spread over the peers. Starting with the last
    shard, the first place of a shard is given to the first peer in its order that has no first
    place yet. When all peers have one, this begins again."""
    spread = []
    waiting: set[int] = set()
    for servers in reversed(orders):
        waiting = waiting or set(servers)
        first = next(peer for peer in servers if peer in waiting)
        waiting.remove(first)
        spread.append((first, *[peer for peer in servers if peer != first]))
    return tuple(reversed(spread))
