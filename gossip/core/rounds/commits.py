"""Creation, receipt and recording of the commits of the present round."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from gossip.core.events import AfterSends, Aggregated, Effect, Payload, Received, Report, Send
from gossip.core.ledger import provenance
from gossip.core.messages import Commit, PeerId

from .participant import Participant
from .result_checks import Objection
from .roster import Attendance
from .shard import ShardRound


class CommitRecorder:
    """Recorder of one commit for each shard.

    Args:
        joining: Peers that are ready to be in the next roster. The caller updates this collection.
        finish: Function that ends the round after the last shard is committed.
    """

    def __init__(
        self,
        participant: Participant,
        attendance: Attendance,
        joining: Collection[PeerId],
        finish: Callable[[float], list[Effect]],
    ) -> None:
        self.local, self.present, self.server = (
            participant.local,
            participant.present,
            participant.server,
        )
        self.participant, self.attendance, self.joining = participant, attendance, joining
        self.lag_detector, self.replicated = participant.lag_detector, participant.replicated
        self.result_validator, self.finish = participant.result_validator, finish
        # A commit that this server is sending to the other peers and has not recorded itself yet.
        self.own_commit: tuple[ShardRound, Commit, Payload | None] | None = None

    def on_aggregated(self, event: Aggregated, now: float) -> list[Effect]:
        """Send the commit of a result to the other peers, which wait for it. This peer records the
        commit only after the sends."""
        if self.present.mode != "active":
            return []
        if (measured := self.server.record_measurements(event)) is not None:
            return self.participant.cross_shard.on_measured(measured, now)
        roster = self.attendance.next_roster(self.present.roster, self.joining, now)
        validator = self.result_validator
        accusations, audits = validator.accusations(), validator.audit_votes()
        made = self.server.finish(event, roster, accusations, audits)
        if made is None:
            return []
        self.own_commit = (*made, event.payload)
        return [*self._spread(made[1], event.payload), AfterSends()]

    def record_own_commit(self, now: float) -> list[Effect]:
        """Record the commit that this server has sent to the other peers."""
        if self.own_commit is None:
            return []
        (shard, commit, payload), self.own_commit = self.own_commit, None
        return self._record(shard, commit, payload, True, now)

    def on_commit(
        self, event: Received, shard: ShardRound, now: float, is_former: bool = False
    ) -> list[Effect]:
        """Handle a commit of a shard of the present round.

        A commit from a former incarnation of its sender may be the only reachable copy of a result
        that other peers have recorded. A server without this copy would make a second result. An
        invalid commit of a former incarnation is dropped without evidence against the present
        incarnation.
        """
        sender, commit, held = event.sender, event.message, shard.commit
        assert isinstance(commit, Commit)
        if not is_former:
            shard.commit_transfer = None  # the transfer is complete
        if held is not None:
            if is_former or held.digest == commit.digest or commit.parent != self.present.parent:
                return []
            digests = {"held": held.digest.hex(), "heard": commit.digest.hex()}
            return [Report("fork", {**provenance(sender, commit), **digests})]
        if (
            commit.parent != self.present.parent
            if is_former
            else self.lag_detector.record_commit_branch(sender, commit, now)
        ):
            return []
        server = shard.order[commit.made_at % len(shard.order)]
        in_turn = commit.made_at <= commit.attempt and commit.server == server
        objection = (
            self.result_validator.judge(event, shard, commit, self.present.own)
            if in_turn and self.replicated.is_sound(commit, event.payload)
            else Objection("it is no result of this round", event="bad_commit")
        )
        if objection is None:
            return self._accept(event, shard, commit, now)
        return (
            [] if is_former else self.result_validator.refuse(sender, shard, commit, objection, now)
        )

    def _accept(
        self, event: Received, shard: ShardRound, commit: Commit, now: float
    ) -> list[Effect]:
        """Record a valid commit, unless this peer is already in a later attempt.

        The server of the present attempt records any commit, even a commit that its own former
        incarnation made. The server then cancels a running aggregation, and re-issues the commit
        under the present attempt.
        """
        payload, server = event.payload, shard.server_of(shard.attempt)
        effects: list[Effect] = []
        if server == self.local:
            commit = replace(commit, attempt=max(commit.attempt, shard.attempt))
            effects = self._spread(commit, payload)
        elif commit.attempt < shard.attempt:
            # This peer has left the attempt of the commit. It records the commit once the server
            # of the current attempt re-issues it.
            return [Send(server, commit, payload)] if shard.mark_forwarded(commit) else []
        elif (
            commit.made_at < shard.attempt
            and event.sender != server
            and not self.lag_detector.is_ahead(server)
            and shard.mark_forwarded(commit)
        ):
            # The present server has the update of this peer. Without this commit, the server would
            # make a second result.
            effects = [Send(server, commit, payload)]
        return effects + self._record(shard, commit, payload, False, now)

    def _spread(self, commit: Commit, payload: Payload | None) -> list[Effect]:
        """Broadcast the commit to all other peers of this round and of the next."""
        roster, is_gone = self.present.roster, self.attendance.view.is_gone
        # Newcomers come last. Other peers send no requests to a newcomer, so a newcomer with the
        # only copy of the commit would be alone on its branch.
        everybody = [*roster.peers, *[peer for peer in commit.roster if peer not in roster]]
        return [
            Send(peer, commit, payload)
            for peer in everybody
            if peer != self.local and (peer in commit.roster or not is_gone(peer))
        ]

    def _record(
        self, shard: ShardRound, commit: Commit, payload: Payload | None, made: bool, now: float
    ) -> list[Effect]:
        turns = self.participant.later_turns
        if shard.claims.led_here is not None or turns.credit.by_peer:
            turns.end(shard, commit.server, now)
        tokens, cancel = shard.record_commit(commit, payload, made), self.participant.timers.cancel
        effects: list[Effect] = [each for token in tokens for each in cancel(token)]
        if all(each.commit is not None for each in self.present.shards):
            return effects + self.finish(now)
        return effects + self.participant.cross_shard.on_shard_committed(
            shard, self.present.own is not None, now
        )
