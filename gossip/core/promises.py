"""What a peer has promised in rounds that it left: it may come back to one, by way of another branch, and is still bound."""

from __future__ import annotations

from collections.abc import Sequence

from .shard import ShardRound

ROUNDS_KEPT = 16


class Promises:
    """The attempt of each shard, by round and the parent that its commits have. Having been there excludes earlier attempts."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[int, bytes], tuple[int, ...]] = {}

    def keep(self, round_id: int, parent: bytes, shards: Sequence[ShardRound]) -> None:
        if shards:
            self._attempts[round_id, parent] = tuple(shard.attempt for shard in shards)
        while len(self._attempts) > ROUNDS_KEPT:
            del self._attempts[next(iter(self._attempts))]

    def first(self, round_id: int, parent: bytes, shard: int) -> int:
        """The earliest attempt that a peer may begin with."""
        attempts = self._attempts.get((round_id, parent), ())
        return attempts[shard] if shard < len(attempts) else 0
