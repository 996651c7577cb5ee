"""Locks of a peer in rounds that it has left: its attempts and its recorded commits. They still
bind the peer if it returns to such a round from another branch."""

from __future__ import annotations

from collections.abc import Sequence

from gossip.core.events import Payload
from gossip.core.latest import Latest
from gossip.core.messages import Commit
from gossip.core.settings import LOCKED_ROUNDS

from .shard import ShardRound

# By shard: commit, payload, and whether this peer made the commit.
Held = dict[int, tuple[Commit, Payload | None, bool]]


class AttemptLocks:
    """Last attempt of each shard in the last ``LOCKED_ROUNDS`` rounds that this peer has left. The
    key is the round and the parent hash of its commits.

    If the peer returns to a round, it takes part in no attempt before the stored attempt. The
    number of attempts skipped because of claims is stored as well. If only some shards of a round
    are committed, their commits are stored, too, but only those of the last such round. Without
    them, the peer could record a second result. The locks are in memory: a restarted peer has none.
    """

    def __init__(self) -> None:
        self._attempts: Latest[tuple[int, bytes], tuple[tuple[int, int], ...]] = Latest(
            LOCKED_ROUNDS
        )
        self._held: tuple[tuple[int, bytes], Held] | None = None

    def keep(self, round_id: int, parent: bytes, shards: Sequence[ShardRound]) -> None:
        if shards:
            self._attempts[round_id, parent] = tuple(
                [(shard.attempt, shard.claims.skipped) for shard in shards]
            )
        if held := {
            s.index: (s.commit, s.payload, s.made_here) for s in shards if s.commit is not None
        }:
            self._held = ((round_id, parent), held)

    def keep_finished(self, round_id: int, parent: bytes, shards: Sequence[ShardRound]) -> None:
        """Record the attempts of a round that this peer has committed. If this peer made the
        result, its lock is one attempt later, so that the peer cannot make a second result in the
        same attempt. The commits are not stored: a peer that returns to this round has left the
        branch of its result, and may contribute to the result of another branch."""
        self._attempts[round_id, parent] = tuple(
            [(shard.attempt + shard.made_here, shard.claims.skipped) for shard in shards]
        )

    def recall(self, round_id: int, parent: bytes, shards: Sequence[ShardRound]) -> list[int]:
        """Restore the locks of a round that begins again: the recorded commits of its shards, and
        the number of attempts skipped because of claims. Return, for each shard, the earliest
        attempt that this peer may take part in."""
        attempts = dict(enumerate(self._attempts.get((round_id, parent), ())))
        place, held = self._held or (None, {})
        if place is not None and place[0] < round_id - LOCKED_ROUNDS:
            self._held = None  # no peer returns to that round, and its payloads use memory
        for shard in shards:
            claims = shard.claims
            claims.skipped = attempts.get(shard.index, (0, 0))[1]
            if place == (round_id, parent) and shard.index in held:
                shard.record_commit(*held[shard.index])
        return [attempts.get(shard.index, (0, 0))[0] for shard in shards]
