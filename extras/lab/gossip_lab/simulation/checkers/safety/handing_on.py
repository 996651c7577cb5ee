"""S10, for the holder: a commit is neither withheld from a peer that would otherwise commit
again, nor ignored by that peer.

It also checks L5: a peer that requests its missing commits receives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gossip.core import (
    Commit,
    CommitRequest,
    Inspection,
    NotServing,
    Payload,
    PeerId,
    Received,
    RollingInspection,
    Update,
    UpdateRequest,
)
from gossip_lab.simulation.checkers.base import ROUNDS_KEPT, Checker, PerLife, keep_latest
from gossip_lab.simulation.checkers.watching import around_event

from .believing import is_doubtful, must_be_refused


class HandsOnWhatItHolds(Checker):
    """S10: a peer that holds a commit sends it, under the attempt in question, to a peer that
    requests an update or offers one, within the same event. The other peer may be the server of a
    later attempt, which would aggregate again, or one that waits for the commit."""

    invariant = "S10"
    needs = "rolling"

    @around_event
    def judge(self, event: Received, message: UpdateRequest | Update) -> Iterator[None]:
        if not _counts(self.core, self.rolling, event, message):
            return
        if (held := _held(self.rolling, message)) is None:
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


def _is_lacking(rounds: RollingInspection, commit: Commit, payload: Payload | None) -> bool:
    """Whether the commit is sound, comes from the server in turn, and is the one missing in its
    shard."""
    if (commit.round_id, commit.parent) != (rounds.round_id, rounds.chain):
        return False
    if commit.shard >= len(rounds.shards):
        return False
    shard = rounds.shards[commit.shard]
    in_turn = commit.made_at <= commit.attempt and commit.server == shard.server_of(commit.made_at)
    return shard.commit is None and in_turn and rounds.replicated.is_sound(commit, payload)


class TakesWhatWasCommitted(Checker):
    """S10: a peer accepts a sound commit of its round, unless it has moved to a later attempt.
    The server of a later attempt also accepts it: it sends the commit under its own attempt, and
    does not make a second one, although its rule may be running.

    S13: a result is doubtful if it opposes the peer's own update, or has an implausible roster or
    rates. No peer accepts a doubtful result until more than f peers have forwarded one in this
    round. (The peer may also reject a result that is too long.)
    """

    invariant = "S10"
    needs = "rolling"
    # by round and shard: peers that forwarded a doubtful result
    _doubted = PerLife(dict[tuple[int, int, bytes], set[PeerId]])

    def _refusable(self, event: Received, commit: Commit) -> str | None:
        """Return the reason why a doubtful commit must be rejected; "" if it must be accepted; None
        if both are right."""
        core, doubted = self.core, self._doubted
        where = commit.round_id, commit.shard, commit.parent
        by = doubted.setdefault(where, set())
        by.add(event.sender)
        keep_latest(doubted, ROUNDS_KEPT)
        # It may also reject the result because of its length.
        refused = self.refusals.senders(self.peer, where[:2], ("refused_result",))
        if len(by | refused) <= core.settings.f:
            return must_be_refused(core, self.rolling, commit, event.similarity) or None
        # Before its own update existed, it may have found the result plausible.
        return None if len(refused | {event.sender}) <= core.settings.f else ""

    @around_event
    def judge(self, event: Received, commit: Commit) -> Iterator[None]:
        core, rounds = self.core, self.rolling
        if not _counts(core, rounds, event, commit):
            return
        if not _is_lacking(rounds, commit, event.payload):
            return
        shard = rounds.shards[commit.shard]
        attempt, serves = shard.attempt, shard.server_of(shard.attempt) == self.peer
        refusable: str | None = ""
        if is_doubtful(core, rounds, commit, event.similarity):
            # Even if the commit is too late, its sender counts as having forwarded it.
            refusable = self._refusable(event, commit)
        if refusable is None or (commit.attempt < attempt and not serves):
            return
        yield
        rounds, where = self.rolling, f"round {commit.round_id}, shard {commit.shard}"
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
                return  # it was paused before it received this, and is no longer the server
            self.demand(
                shard.commit is not None,
                f"does not accept a sound commit of {where}, of attempt {commit.attempt}, but "
                f"{'serves' if serves else 'is at'} attempt {attempt}",
            )
        else:
            self.judged += 1


class GivesWhatIsAskedFor(Checker):
    """L5: a peer that requests all commits since a round gets every one of them, in an acceptable
    form. If they are no longer stored, it gets that reply at once. It catches up with a short
    absence by replaying it."""

    invariant = "L5"
    needs = "rolling"

    @around_event
    def judge(self, event: Received, asked: CommitRequest) -> Iterator[None]:
        rounds, first = self.rolling, asked.first
        if rounds.holds_back or not _counts(self.core, rounds, event, asked):
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


def _counts(
    core: Inspection,
    rounds: RollingInspection,
    event: Received,
    message: UpdateRequest | Update | Commit | CommitRequest,
) -> bool:
    """Whether the message counts: it comes from its sender's present incarnation (or is a commit of
    a former one), from this lineage, and its sender takes part."""
    member = core.membership.members.get(event.sender)
    if member is None or message.lineage != core.settings.lineage:
        return False
    if event.incarnation > member.incarnation or (
        event.incarnation < member.incarnation and not isinstance(message, Commit)
    ):
        return False
    return core.phase == "running" and event.sender in rounds.roster


def _held(rounds: RollingInspection, message: UpdateRequest | Update) -> Commit | None:
    """Return the commit that the sender of ``message`` lacks. A commit of a past round is already
    in transit, unless the message is of a later attempt."""
    if rounds.holds_back:
        # The peer stores its sent commit before it receives this message, and the round
        # may then be over
        return None
    if message.round_id == rounds.round_id:
        known = message.parent == rounds.chain and message.shard < len(rounds.shards)
        return rounds.shards[message.shard].commit if known else None
    held = rounds.log.get(message.round_id)
    if held is None or message.shard >= len(held):
        return None
    commit = held[message.shard][0]
    return commit if commit.parent == message.parent and message.attempt > commit.attempt else None
