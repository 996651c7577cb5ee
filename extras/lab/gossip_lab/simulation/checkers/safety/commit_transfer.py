"""S10: a holder of a commit sends it to a peer that could otherwise make a second commit, and this
peer accepts it.

L5: a peer that requests missing commits receives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gossip.core import (
    Commit,
    CommitRequest,
    NotServing,
    Payload,
    PeerId,
    Received,
    Update,
    UpdateRequest,
)
from gossip_lab.inspection import Inspection, RollingInspection
from gossip_lab.simulation.checkers.base import (
    ROUNDS_KEPT,
    Checker,
    PerIncarnation,
    around_event,
    keep_latest,
)

from .result_validation import is_doubtful, rejection_reason


class CommitForwarding(Checker):
    """S10: a peer holds a commit and receives a request for an update, or an offered update, for
    this shard. Within the same event it sends the commit to the sender, under the attempt of the
    message. The sender may be the server of a later attempt, which would otherwise aggregate again,
    or a peer that waits for the commit."""

    invariant = "S10"
    needs = "rolling"

    @around_event
    def judge(self, event: Received, message: UpdateRequest | Update) -> Iterator[None]:
        if not _must_be_handled(self.core, self.rolling, event, message):
            return
        if (held := _stored_commit(self.rolling, message)) is None:
            return
        yield
        place = held.round_id, held.shard, held.parent, held.digest
        self.demand(
            any(
                sent.attempt >= message.attempt
                and (sent.round_id, sent.shard, sent.parent, sent.digest) == place
                for sent in self.sent(Commit, event.sender)
            ),
            f"holds a commit of round {held.round_id}, shard {held.shard}, made by peer "
            f"{held.server} in attempt {held.made_at}, and does not send it to peer "
            f"{event.sender}, which has sent an {type(message).__name__} of attempt "
            f"{message.attempt}",
        )


def _is_acceptable(rounds: RollingInspection, commit: Commit, payload: Payload | None) -> bool:
    """Whether the commit is well-formed, was made by the server of its attempt, and belongs to the
    present round and to a shard without a commit."""
    if (commit.round_id, commit.parent) != (rounds.round_id, rounds.chain):
        return False
    if commit.shard >= len(rounds.shards):
        return False
    shard = rounds.shards[commit.shard]
    in_turn = commit.made_at <= commit.attempt and commit.server == shard.server_of(commit.made_at)
    return shard.commit is None and in_turn and rounds.replicated.is_sound(commit, payload)


class CommitAcceptance(Checker):
    """S10: a peer accepts a well-formed commit of its round, unless it has moved to a later
    attempt. If it is the server of the later attempt, it accepts the commit, too. It then sends
    this commit under its own attempt instead of making a second commit, even if its rule is
    running.

    S13: a result is doubtful if it is opposed to the local update, or has an implausible roster or
    learning rates. A peer accepts a doubtful result only after more than f peers have forwarded a
    doubtful result in this round. (The peer may also reject a result that is too long.)
    """

    invariant = "S10"
    needs = "rolling"
    # (round, shard, hash of the previous round) -> peers that have forwarded a doubtful result.
    _doubted = PerIncarnation(dict[tuple[int, int, bytes], set[PeerId]])

    def _refusable(self, event: Received, commit: Commit) -> str | None:
        """Return the reason why a doubtful commit must be rejected. Return "" if it must be
        accepted, and None if both are allowed."""
        core, doubted = self.core, self._doubted
        where = commit.round_id, commit.shard, commit.parent
        by = doubted.setdefault(where, set())
        by.add(event.sender)
        keep_latest(doubted, ROUNDS_KEPT)
        # The peer may also have rejected results because of their length.
        refused = self.rejected_senders(where[:2], ("refused_result",))
        if len(by | refused) <= core.settings.f:
            return rejection_reason(core, self.rolling, commit, event.similarity) or None
        # Before its own update was ready, the peer may have found an earlier result plausible.
        return None if len(refused | {event.sender}) <= core.settings.f else ""

    @around_event
    def judge(self, event: Received, commit: Commit) -> Iterator[None]:
        core, rounds = self.core, self.rolling
        if not _must_be_handled(core, rounds, event, commit):
            return
        if not _is_acceptable(rounds, commit, event.payload):
            return
        shard = rounds.shards[commit.shard]
        attempt = shard.attempt
        serves = shard.server_of(shard.attempt) == self.peer
        refusable: str | None = ""
        if is_doubtful(core, rounds, commit, event.similarity):
            # This records the sender even if the commit is too late.
            refusable = self._refusable(event, commit)
        if refusable is None or (commit.attempt < attempt and not serves):
            return
        yield
        rounds = self.rolling
        where = f"round {commit.round_id}, shard {commit.shard}"
        if not rounds.shards:
            return
        if refusable:
            kept = (
                rounds.log.get(commit.round_id) if rounds.round_id == commit.round_id + 1 else None
            )
            taken = (
                kept[commit.shard][0] if kept is not None else rounds.shards[commit.shard].commit
            )
            same = taken is not None and replace(taken, attempt=commit.attempt) == commit
            text = f"accepts a result of {where}, made by peer {commit.server}, although "
            self.demand(not same, text + refusable)
        elif (rounds.round_id, rounds.chain) == (commit.round_id, commit.parent):
            shard = rounds.shards[commit.shard]
            if shard.attempt != attempt:
                return  # the peer was paused before, and no longer serves
            self.demand(
                shard.commit is not None,
                f"does not accept a sound commit of {where}, of attempt {commit.attempt}, but "
                f"{'serves' if serves else 'is at'} attempt {attempt}",
            )
        else:
            self.judged += 1


class CommitRequestReplies(Checker):
    """L5: a peer that requests all commits since a round receives all of them, under attempts that
    it can accept. So it can replay the rounds of a short absence. If the commits are no longer
    stored, it receives this reply at once."""

    invariant = "L5"
    needs = "rolling"

    @around_event
    def judge(self, event: Received, asked: CommitRequest) -> Iterator[None]:
        rounds, first = self.rolling, asked.first
        if rounds.holds_back or not _must_be_handled(self.core, rounds, event, asked):
            return
        kept = range(first, rounds.round_id) if rounds.log.get(first) is not None else range(0)
        owed = {
            (round_id, shard)
            for round_id in kept
            for shard in range(len(rounds.log.get(round_id) or ()))
            if not asked.lacking or round_id > first or shard in asked.lacking
        }
        if not owed and first >= rounds.round_id:
            return
        yield
        if owed:
            owed -= {
                (sent.round_id, sent.shard)
                for sent in self.sent(Commit, event.sender)
                if sent.round_id != first or sent.attempt >= asked.attempt
            }
            lacking, complete = f"the commits {sorted(owed)[:3]}", not owed
        else:
            lacking = "the reply that they are no longer stored"
            complete = bool(self.sent(NotServing, event.sender))
        self.demand(
            complete, f"does not send peer {event.sender}, which requests commits, {lacking}"
        )


def _must_be_handled(
    core: Inspection,
    rounds: RollingInspection,
    event: Received,
    message: UpdateRequest | Update | Commit | CommitRequest,
) -> bool:
    """Whether the receiver has to handle the message: it belongs to this lineage, its sender is in
    the roster, and it comes from the sender's present incarnation, or is a commit."""
    member = core.membership.members.get(event.sender)
    if member is None or message.lineage != core.settings.lineage:
        return False
    if event.incarnation > member.incarnation or (
        event.incarnation < member.incarnation and not isinstance(message, Commit)
    ):
        return False
    return core.phase == "running" and event.sender in rounds.roster


def _stored_commit(rounds: RollingInspection, message: UpdateRequest | Update) -> Commit | None:
    """Return the stored commit that the sender of ``message`` lacks, or None. A commit of a past
    round is already in transit, unless the message belongs to a later attempt."""
    if rounds.holds_back:
        # The peer first stores a commit of its own, and its round may end before it handles the
        # message.
        return None
    if message.round_id == rounds.round_id:
        known = message.parent == rounds.chain and message.shard < len(rounds.shards)
        return rounds.shards[message.shard].commit if known else None
    held = rounds.log.get(message.round_id)
    if held is None or message.shard >= len(held):
        return None
    commit = held[message.shard][0]
    return commit if commit.parent == message.parent and message.attempt > commit.attempt else None
