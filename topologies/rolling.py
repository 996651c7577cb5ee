"""The rolling parameter server: a hash determines the server of every round and shard."""

from __future__ import annotations

from collections.abc import Sequence

from gossip.errors import ConfigError

from .base import Plan, Roster, draws, topology
from .weights import lots


@topology(rolling=True)
def rolling(
    roster: Roster, round_id: int, seed: int, *, shards: int = 1, weights: str = ""
) -> Plan:
    """Order the peers of each shard by their lots. A lot is a hash of (seed, lineage, round, shard,
    peer).

    If a peer leaves the roster, the order of the others stays the same, except for first places;
    after a shuffle it would not. A peer of weight w has w lots, and its lowest lot counts. So it
    gets the first place, and each following place, w times as often as a peer of weight 1. Lots are
    integers, because logarithms differ between machines.

    Without weights, no peer has two first places in a round unless every peer has one, because the
    link of the busiest server determines the time of a round. If shards had independent orders, two
    shards on two peers would have the same server in every other round, and the busiest of 8 peers
    would serve 2.6 of 8 shards on average. If the number of shards is one more than a multiple of
    n, any peer may serve the first shard. (This shard is short if shards decide together.)

    Args:
        shards: Number of parts of a vector, each with its own order of servers.
        weights: Relative frequencies of serving, as in ``0:4,2:2``; other peers have weight 1. See
            ``weights.lots`` for the bounds.
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
    """Spread the first places over the peers. Beginning with the last shard, the first place goes
    to the first peer in the shard's order that has no first place yet. When all peers have a first
    place, each of them may get another."""
    spread = []
    waiting: set[int] = set()
    for servers in reversed(orders):
        waiting = waiting or set(servers)
        first = next(peer for peer in servers if peer in waiting)
        waiting.remove(first)
        spread.append((first, *[peer for peer in servers if peer != first]))
    return tuple(reversed(spread))
