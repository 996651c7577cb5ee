"""S10, from the other end: what was committed is neither kept back from one who would commit again,
nor passed over by it.

And L5: who asks for the commits that it lacks is given them."""

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
    """Somebody who has no commit of a shard has come to one who has."""

    by: PeerId
    what: str
    attempt: int
    held: Commit


class HandsOnWhatItHolds(Checker):
    """S10: whoever holds a commit hands it, under the attempt in question, to a peer that asks for
    an update or offers one, in the same breath: to a server of a later attempt, which would
    aggregate again, and to one that waits for it."""

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
    def judge_handed(self, send: Send, told: Commit) -> None:
        asked = self._asked
        if asked is None or send.peer != asked.by or told.attempt < asked.attempt:
            return
        held = asked.held
        if (told.round_id, told.shard, told.parent, told.digest) == (
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
            f"{held.server} in attempt {held.made_at}, and does not hand it to peer {asked.by}, "
            f"whose {asked.what} was of attempt {asked.attempt}"
        )


@dataclass(frozen=True, slots=True)
class _Heard:
    """A sound commit has come to one that had none of its shard."""

    commit: Commit
    attempt: int  # where the receiver was
    serves: bool
    refusable: str  # why it must not be taken; no more than f have handed it over


def _is_lacking(rounds: RollingInspection, commit: Commit, payload: Payload | None) -> bool:
    """Whether a sound commit of a server whose turn it was is the one that its shard lacks."""
    if (commit.round_id, commit.parent) != (rounds.round_id, rounds.chain):
        return False
    if commit.shard >= len(rounds.shards):
        return False
    shard = rounds.shards[commit.shard]
    in_turn = commit.made_at <= commit.attempt and commit.server == shard.server_of(commit.made_at)
    return shard.commit is None and in_turn and rounds.replicated.is_sound(commit, payload)


class TakesWhatWasCommitted(Checker):
    """S10: whoever hears of a sound commit of its round takes it, unless it has promised not to.
    The server of a later attempt has not: it spreads that one under its own attempt, and does not
    make a second, though its rule may be running.

    And S13: nobody takes a result that opposes its own update, or claims what it cannot believe of
    rates and roster, until more than f peers have handed it such in this round. (It may refuse one
    that is too long, too.)"""

    invariant = "S10"
    needs = "rolling"
    _heard = PerLife[_Heard | None](lambda: None)
    # by round and shard: who handed it over
    _doubted = PerLife(dict[tuple[int, int, bytes], set[PeerId]])
    # likewise, of those of whom it was not taken
    _refused = PerLife(dict[tuple[int, int], set[PeerId]])

    @on_report("recovering")
    def forget_refusals(self, report: Report) -> None:
        self._refused.clear()  # in a round that it comes back to it begins anew

    @on_report("refused_result")
    def record_refusal(self, report: Report) -> None:
        refused, fields = self._refused, report.fields
        refused.setdefault((fields["round"], fields["shard"]), set()).add(fields["from"])
        keep_latest(refused, ROUNDS_KEPT)

    @on_event
    def record_heard(self, event: Received, commit: Commit) -> None:
        self._heard = None
        core, rounds = self.core, self.rolling
        if not _counts(core, rounds, event, commit):
            return
        if not _is_lacking(rounds, commit, event.payload):
            return
        shard = rounds.shards[commit.shard]
        serves = shard.server_of(shard.attempt) == self.peer
        # not to take it: but who hands it over is heard all the same
        promised = commit.attempt < shard.attempt and not serves
        refusable: str | None = ""
        if is_doubtful(core, rounds, commit, event.similarity):
            refusable = self._refusable(event, commit)
        if refusable is not None and not promised:
            self._heard = _Heard(commit, shard.attempt, serves, refusable)

    def _refusable(self, event: Received, commit: Commit) -> str | None:
        """Why a doubtful commit must not be taken; "": it must be; None: either will do."""
        core, doubted = self.core, self._doubted
        where = commit.round_id, commit.shard, commit.parent
        by = doubted.setdefault(where, set())
        by.add(event.sender)
        keep_latest(doubted, ROUNDS_KEPT)
        refused = self._refused.get(where[:2], set())  # for its length, too
        if len(by | refused) <= core.settings.f:
            return must_be_refused(core, self.rolling, commit, event.similarity) or None
        # Before its own update was there it may have found nothing wrong with it.
        return None if len(refused | {event.sender}) <= core.settings.f else ""

    @after_event
    def judge(self, event: Received, commit: Commit) -> None:
        heard, rounds, self._heard = self._heard, self.rolling, None
        if heard is None or not rounds.shards:
            return
        where = f"round {commit.round_id}, shard {commit.shard}"
        if heard.refusable:
            kept = (
                rounds.log.get(commit.round_id) if rounds.round_id == commit.round_id + 1 else None
            )
            taken = (
                kept[commit.shard][0] if kept is not None else rounds.shards[commit.shard].commit
            )
            same = taken is not None and replace(taken, attempt=commit.attempt) == commit
            text = f"takes a result of {where}, made by peer {commit.server}, although "
            self.demand(not same, text + heard.refusable)
        elif (rounds.round_id, rounds.chain) == (commit.round_id, commit.parent):
            shard = rounds.shards[commit.shard]
            if shard.attempt != heard.attempt:
                return  # it stood still before it heard this, and serves no more
            does = "serves" if heard.serves else "is at"
            self.demand(
                shard.commit is not None,
                f"does not take a sound commit of {where}, of attempt {commit.attempt}, and {does} "
                f"attempt {heard.attempt}",
            )
        else:
            self.judged += 1


@dataclass(slots=True)
class _Owed:
    """Messages that a request for commits calls for and that have not been sent yet."""

    to: PeerId
    commits: set[tuple[int, int]]  # round and shard
    not_serving: bool
    asked: CommitRequest


class GivesWhatIsAskedFor(Checker):
    """L5: who asks for the commits from a round on is given every one of them, such that it may
    take them, or told at once that they are not kept any more;
    a short absence is caught up with by replaying it."""

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
    def record_sent(self, send: Send, told: Commit | NotServing) -> None:
        owed = self._owed
        if owed is None or send.peer != owed.to:
            return
        if isinstance(told, NotServing):
            owed.not_serving = False
        elif told.round_id != owed.asked.first or told.attempt >= owed.asked.attempt:
            owed.commits.discard((told.round_id, told.shard))

    @after_event
    def judge(self, event: Received, asked: CommitRequest) -> None:
        owed, self._owed = self._owed, None
        if owed is None:
            return
        lacking = (
            f"the commits {sorted(owed.commits)[:3]}"
            if owed.commits
            else "word that they are not kept any more"
        )
        self.demand(
            not owed.commits and not owed.not_serving,
            f"does not give peer {owed.to}, which asks for commits, {lacking}",
        )


def _counts(
    core: Inspection,
    rounds: RollingInspection,
    event: Received,
    message: UpdateRequest | Update | Commit | CommitRequest,
) -> bool:
    """Whether it is heard: said in its sender's present life, or a commit of a former one, of this
    lineage, by one who takes part."""
    member = core.membership.members.get(event.sender)
    if member is None or message.lineage != core.settings.lineage:
        return False
    if event.incarnation > member.incarnation or (
        event.incarnation < member.incarnation and not isinstance(message, Commit)
    ):
        return False
    return core.phase == "running" and event.sender in rounds.roster


def _held(rounds: RollingInspection, message: UpdateRequest | Update) -> Commit | None:
    """The commit that the sender of ``message`` lacks. One of a round that is over is on its way to
    it, unless its attempt is a later one."""
    if rounds.holds_back:
        # what it has spread is held before it hears this, and the round may be over by that
        return None
    if message.round_id == rounds.round_id:
        known = message.parent == rounds.chain and message.shard < len(rounds.shards)
        return rounds.shards[message.shard].commit if known else None
    held = rounds.log.get(message.round_id)
    if held is None or message.shard >= len(held):
        return None
    commit = held[message.shard][0]
    return commit if commit.parent == message.parent and message.attempt > commit.attempt else None
