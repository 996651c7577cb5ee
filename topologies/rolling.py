"""The rolling parameter server: who serves is drawn afresh for every round and shard."""

from __future__ import annotations

from gossip.errors import ConfigError

from .base import Plan, Roster, draws, topology
from .weights import lots


@topology(rolling=True)
def rolling(
    roster: Roster, round_id: int, seed: int, *, shards: int = 1, weights: str = ""
) -> Plan:
    """Orders the peers of each shard by a hash of (seed, lineage, round, shard, peer): their lots.

    A hash and not a shuffle: when one peer leaves the roster the order of the others stays as it
    was. A peer of weight w draws w lots, of which the lowest counts: the first place, and each
    place behind it, falls to it w times as often as to one of weight 1. Lots and not logarithms:
    whole numbers are the same on every machine.

    Args:
        shards: Parts that a vector is cut in, each with an order of its own.
        weights: How often peers serve, as in ``0:4,2:2``; who is not named has weight 1. See
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

    return Plan(servers=tuple([order(shard) for shard in range(shards)]))
