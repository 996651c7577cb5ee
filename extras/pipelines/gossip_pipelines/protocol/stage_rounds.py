"""Rounds of one stage of a pipeline. A round ends after all stages have committed it."""

from __future__ import annotations

from typing import Any

from gossip.core import Effect, PeerId, RollingRounds, reissue

from .barrier import StageBarrier


class StageRounds(RollingRounds):
    """Rolling rounds that wait at ``barrier`` for the other stages.

    Args: The barrier, followed by the arguments of ``RollingRounds``.
    """

    def __init__(self, barrier: StageBarrier, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._barrier = barrier

    @property
    def is_committed(self) -> bool:
        """Whether this peer has the commits of all shards of this round. The round ends after the
        other stages have committed it, too."""
        return bool(self.shards) and not self.present.lacking()

    def committed_roster(self) -> tuple[PeerId, ...]:
        """Return the roster of the next round if this round is committed; otherwise that of this
        round."""
        first = self.shards[0].commit if self.is_committed else None
        return self.roster.peers if first is None else first.roster

    def committed_pass_us(self) -> tuple[int, ...]:
        """Return the time of a micro-batch of each peer in ``committed_roster``, in microseconds.
        These are the times that determine the weights."""
        held = [shard.commit for shard in self.shards if shard.commit is not None]
        return self.replicated.pass_us(self.committed_roster(), held if self.is_committed else ())

    def pass_barrier(self, now: float) -> list[Effect]:
        """End the round if it is committed and the barrier is open."""
        is_over = self.is_committed and self._barrier.is_open(self.round_id)
        return super()._finish(now) if is_over else []

    def resend_commits(self, peer: PeerId, round_id: int) -> list[Effect]:
        """Send all commits of a round again to a peer that has not left the round."""
        if round_id < self.round_id:
            over = self.log.get(round_id) or ()
            return [reissue(peer, commit, payload, commit.attempt) for commit, payload in over]
        if round_id > self.round_id or not self.is_committed:
            return []
        held = [(s.commit, s.payload, s.attempt) for s in self.shards if s.commit is not None]
        return [reissue(peer, commit, payload, attempt) for commit, payload, attempt in held]

    def _finish(self, now: float) -> list[Effect]:
        """Report the commit to the other stages. If the barrier is open already, end the round."""
        effects = self._barrier.on_round_committed(
            self.round_id, self.committed_roster(), self.committed_pass_us(), now
        )
        return effects + self.pass_barrier(now)

    def _replay_stored(self, now: float) -> list[Effect]:
        # A round that was committed before a recovery was waiting for the other stages.
        return self._finish(now) if self.is_committed else super()._replay_stored(now)
