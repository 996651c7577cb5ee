"""The rolling parameter server: who serves is drawn afresh for every round and shard."""

from __future__ import annotations

from gossip.errors import ConfigError

from .base import Plan, Roster, draws, topology


@topology(rolling=True)
def rolling(roster: Roster, round_id: int, seed: int, *, shards: int = 1) -> Plan:
    """Orders the peers of each shard by a hash of (seed, lineage, round, shard, peer).

    A hash and not a shuffle: when one peer leaves the roster the order of the others stays as it was.

    Args:
        shards: Parts that a vector is cut in, each with an order of its own.
    """
    if not isinstance(shards, int) or shards < 1:
        raise ConfigError(f"rolling: shards must be a whole number of at least 1, not {shards!r}")

    def order(shard: int) -> tuple[int, ...]:
        drawn = draws((seed, roster.lineage, round_id, shard), roster.peers)
        return tuple([peer for _, peer in sorted(zip(drawn, roster.peers, strict=True))])

    return Plan(servers=tuple([order(shard) for shard in range(shards)]))
