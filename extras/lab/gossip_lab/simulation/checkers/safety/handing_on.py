"""S10, from the other end: a commit is neither withheld from a peer that would commit again, nor
ignored by it.

And L5: a peer that requests the commits that it lacks gets them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossip.core import (
    Commit,
    CommitRequest,
    Inspection,
    NotServing,
    Payload,
    PeerId,
    Received,
    Report,
    RollingInspection,
    Send,
    Update,
    UpdateRequest,
)
from gossip_lab.simulation.checkers.base import Checker, PerLife, keep_latest
from gossip_lab.simulation.checkers.watching import after_event, on_effect, on_event, on_report

from .believing import is_doubtful, must_be_refused

ROUNDS_KEPT = 64


@dataclass(frozen=True, slots=True)
class _CommitAsked:
    """A peer without a commit of a shard has sent a message to one that holds the commit."""

    by: PeerId
    what: str
    attempt: int
    held: Commit


class HandsOnWhatItHolds(Checker):
    """S10: a peer that holds a commit sends it, under the attempt in question, to a peer that
    requests an update or offers one, within the same event. The other peer may be the server of a
    later attempt, which would aggregate again, or one that waits for the commit."""

    invariant = "S10"
    needs = "rolling"
    _asked = PerLife[_CommitAsked | None](lambda: None)

    @on_event
    def record_asked(self, event: Received, message: UpdateRequest | Update) -> None:
        self._asked = None
        if _counts(self.core, self.rolling, event, message):
            held = _held(self.rolling, message)
            if held is not None:
                self._asked = _CommitAsked(
                    event.sender, type(message).__name__, message.attempt, held
                )

    @on_effect
    def judge_handed(self, send: Send, sent: Commit) -> None:
        asked = self._asked
        if asked is None or send.peer != asked.by or sent.attempt < asked.attempt:
            return
        held = asked.held
        if (sent.round_id, sent.shard, sent.parent, sent.digest) == (
            held.round_id,
            held.shard,
            held.parent,
            held.digest,
        ):
            self._asked = None
            self.judged += 1

    @after_event
    def judge(self, event: Received, message: UpdateRequest | Update) -> None:
        asked, self._asked = self._asked, None
        if asked is None:
            return
        held = asked.held
        raise self.violated(
            f"holds a commit of round {held.round_id}, shard {held.shard}, made by peer "
            f"{held.server} in attempt {held.made_at}, and does not send it to peer {asked.by}, "
            f"which has sent an {asked.what} of attempt {asked.attempt}"
        )


@dataclass(frozen=True, slots=True)
class _ReceivedCommit:
    """A sound commit has arrived at a peer that had none of its shard."""

    commit: Commit
    attempt: int  # of the receiver
    serves: bool
    refusable: str  # why it must be rejected; at most f peers have forwarded it


def _is_lacking(rounds: RollingInspection, commit: Commit, payload: Payload | None) -> bool:
    """Whether the commit is sound, comes from the server in turn, and is the one that its shard
    lacks."""
    if (commit.round_id, commit.parent) != (rounds.round_id, rounds.chain):
        return False
    if commit.shard >= len(rounds.shards):
        return False
    shard = rounds.shards[commit.shard]
    in_turn = commit.made_at <= commit.attempt and commit.server == shard.server_of(commit.made_at)
    return shard.commit is None and in_turn and rounds.replicated.is_sound(commit, payload)


class TakesWhatWasCommitted(Checker):
    """S10: a peer accepts a sound commit of its round, unless it has moved on to a later attempt.
    The server of a later attempt accepts it, too: it sends the commit under its own attempt, and
    does not make a second one, though its rule may be running.

    And S13: no peer accepts a result that opposes its own update, or has an implausible roster or
    rates, until more than f peers have forwarded one in this round. (It may reject one that is too
    long, too.)
    """

    invariant = "S10"
    needs = "rolling"
    _received = PerLife[_ReceivedCommit | None](lambda: None)
    # by round and shard: peers that forwarded a doubtful result
    _doubted = PerLife(dict[tuple[int, int, bytes], set[PeerId]])
    # by round and shard: peers from which a result was rejected
    _refused = PerLife(dict[tuple[int, int], set[PeerId]])

    @on_report("recovering")
    def forget_refusals(self, report: Report) -> None:
        self._refused.clear()  # in a round to which it returns it begins anew

    @on_report("refused_result")
    def record_refusal(self, report: Report) -> None:
        refused, fields = self._refused, report.fields
        refused.setdefault((fields["round"], fields["shard"]), set()).add(fields["from"])
        keep_latest(refused, ROUNDS_KEPT)

    @on_event
    def record_heard(self, event: Received, commit: Commit) -> None:
        self._received = None
        core, rounds = self.core, self.rolling
        if not _counts(core, rounds, event, commit):
            return
        if not _is_lacking(rounds, commit, event.payload):
            return
        shard = rounds.shards[commit.shard]
        serves = shard.server_of(shard.attempt) == self.peer
        # the commit is not accepted, but its sender counts as one that has forwarded it
        promised = commit.attempt < shard.attempt and not serves
        refusable: str | None = ""
        if is_doubtful(core, rounds, commit, event.similarity):
            refusable = self._refusable(event, commit)
        if refusable is not None and not promised:
            self._received = _ReceivedCommit(commit, shard.attempt, serves, refusable)

    def _refusable(self, event: Received, commit: Commit) -> str | None:
        """Return why a doubtful commit must be rejected; "": it must be accepted; None: both are
        right."""
        core, doubted = self.core, self._doubted
        where = commit.round_id, commit.shard, commit.parent
        by = doubted.setdefault(where, set())
        by.add(event.sender)
        keep_latest(doubted, ROUNDS_KEPT)
        refused = self._refused.get(where[:2], set())  # because of its length, too
        if len(by | refused) <= core.settings.f:
            return must_be_refused(core, self.rolling, commit, event.similarity) or None
        # Before its own update existed, it may have found the result plausible.
        return None if len(refused | {event.sender}) <= core.settings.f else ""

    @after_event
    def judge(self, event: Received, commit: Commit) -> None:
        received, rounds, self._received = self._received, self.rolling, None
        if received is None or not rounds.shards:
            return
        where = f"round {commit.round_id}, shard {commit.shard}"
        if received.refusable:
            kept = (
                rounds.log.get(commit.round_id) if rounds.round_id == commit.round_id + 1 else None
            )
            taken = (
                kept[commit.shard][0] if kept is not None else rounds.shards[commit.shard].commit
            )
            same = taken is not None and replace(taken, attempt=commit.attempt) == commit
            text = f"accepts a result of {where}, made by peer {commit.server}, although "
            self.demand(not same, text + received.refusable)
        elif (rounds.round_id, rounds.chain) == (commit.round_id, commit.parent):
            shard = rounds.shards[commit.shard]
            if shard.attempt != received.attempt:
                return  # it was paused before it received this, and is no longer the server
            does = "serves" if received.serves else "is at"
            self.demand(
                shard.commit is not None,
                f"does not accept a sound commit of {where}, of attempt {commit.attempt}, and "
                f"{does} attempt {received.attempt}",
            )
        else:
            self.judged += 1


@dataclass(slots=True)
class _Owed:
    """Messages that are due in reply to a request for commits and that have not been sent yet."""

    to: PeerId
    commits: set[tuple[int, int]]  # round and shard
    not_serving: bool
    asked: CommitRequest


class GivesWhatIsAskedFor(Checker):
    """L5: a peer that requests the commits from a round on gets every one of them, in an acceptable
    form. If they are not kept any more, it gets that reply at once. It catches up with a short
    absence by replaying it."""

    invariant = "L5"
    needs = "rolling"
    _owed = PerLife[_Owed | None](lambda: None)

    @on_event
    def record_asked(self, event: Received, asked: CommitRequest) -> None:
        self._owed = None
        rounds = self.rolling
        if rounds.holds_back or not _counts(self.core, rounds, event, asked):
            return
        first = asked.first
        kept = range(first, rounds.round_id) if rounds.log.get(first) is not None else range(0)
        held = [(round_id, rounds.log.get(round_id)) for round_id in kept]
        commits = {
            (round_id, shard)
            for round_id, of_round in held
            for shard in range(len(of_round or ()))
            if not asked.lacking or round_id > first or shard in asked.lacking
        }
        not_serving = not commits and first < rounds.round_id
        if commits or not_serving:
            self._owed = _Owed(event.sender, commits, not_serving, asked)

    @on_effect
    def record_sent(self, send: Send, sent: Commit | NotServing) -> None:
        owed = self._owed
        if owed is None or send.peer != owed.to:
            return
        if isinstance(sent, NotServing):
            owed.not_serving = False
        elif sent.round_id != owed.asked.first or sent.attempt >= owed.asked.attempt:
            owed.commits.discard((sent.round_id, sent.shard))

    @after_event
    def judge(self, event: Received, asked: CommitRequest) -> None:
        owed, self._owed = self._owed, None
        if owed is None:
            return
        lacking = (
            f"the commits {sorted(owed.commits)[:3]}"
            if owed.commits
            else "the reply that they are not kept any more"
        )
        self.demand(
            not owed.commits and not owed.not_serving,
            f"does not send peer {owed.to}, which requests commits, {lacking}",
        )


def _counts(
    core: Inspection,
    rounds: RollingInspection,
    event: Received,
    message: UpdateRequest | Update | Commit | CommitRequest,
) -> bool:
    """Whether the message counts: it is of its sender's present life (or a commit of a former one),
    of this lineage, and its sender takes part."""
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
    on its way, unless the message is of a later attempt."""
    if rounds.holds_back:
        # the peer stores the commit that it has sent before it receives this message, and the round
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
