"""The rolling parameter server: the server is drawn for every round and shard."""

from __future__ import annotations

from collections.abc import Sequence

from gossip.errors import ConfigError

from .base import Plan, Roster, draws, topology
from .weights import lots


@topology(rolling=True)
def rolling(
    roster: Roster, round_id: int, seed: int, *, shards: int = 1, weights: str = ""
) -> Plan:
    """Order the peers of each shard by a hash of (seed, lineage, round, shard, peer): their lots.

    With a hash instead of a shuffle, the order of the other peers stays when one peer leaves the
    roster, except for first places. A peer of weight w draws w lots, of which the lowest counts. So
    it gets the first place, and each place after it, w times as often as a peer of weight 1. Lots
    are integers, which are the same on every machine; logarithms are not.

    Without weights the first places of a round are spread: no peer has two before every peer has
    one. The link of the peer that serves most determines the time of a round. Drawn independently,
    2 shards had the same server of 2 peers every other time, and 8 shards gave 2.6 to one of 8
    peers. A remaining shard is the first one, and may belong to any peer. The short first shard
    of shards that decide together is an example.

    Args:
        shards: Number of parts of a vector, each with its own order.
        weights: Frequencies of serving, as in ``0:4,2:2``; a peer that is not named has weight 1.
            See ``weights.lots`` for the bounds.
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
    """Return the same orders with other first places: starting with the last shard, each goes to
    the first peer in its order without one. When all peers have one, the next turn begins."""
    spread = []
    waiting: set[int] = set()
    for servers in reversed(orders):
        waiting = waiting or set(servers)
        first = next(peer for peer in servers if peer in waiting)
        waiting.remove(first)
        spread.append((first, *[peer for peer in servers if peer != first]))
    return tuple(reversed(spread))
