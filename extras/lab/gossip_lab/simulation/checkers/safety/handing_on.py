"""S10, from the other end: what was committed is neither kept back from one who would commit again,
nor passed over by it.

And L5: who asks for the commits that it lacks is given them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gossip.core import (
    Commit,
    CommitRequest,
    Effect,
    Event,
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
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

from .believing import is_doubtful, must_be_refused
from .rounds import rolling_of

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
    events = (UpdateRequest, Update)
    effects = (Commit,)
    afters = (UpdateRequest, Update)

    def make_records(self) -> None:
        self._asked: dict[PeerId, _CommitAsked] = self.per_life()

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received) or not isinstance(event.message, UpdateRequest | Update):
            return
        self._asked.pop(peer, None)
        core, message = swarm.inspections.get(peer), event.message
        rounds = core.rolling if core is not None else None
        if core is None or rounds is None or not _counts(core, rounds, event, message):
            return
        held = _held(rounds, message)
        if held is not None:
            self._asked[peer] = _CommitAsked(
                event.sender, type(message).__name__, message.attempt, held
            )

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        asked = self._asked.get(peer)
        if (
            asked is None
            or not isinstance(effect, Send)
            or not isinstance(effect.message, Commit)
            or effect.peer != asked.by
        ):
            return
        told, held = effect.message, asked.held
        same = (told.round_id, told.shard, told.parent, told.digest) == (
            held.round_id,
            held.shard,
            held.parent,
            held.digest,
        )
        if same and told.attempt >= asked.attempt:
            del self._asked[peer]
            self.judged += 1

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        asked = self._asked.pop(peer, None)
        if asked is None:
            return
        held = asked.held
        where = (
            f"round {held.round_id}, shard {held.shard}, made by peer {held.server} in attempt "
            f"{held.made_at}"
        )
        told = f"peer {asked.by}, whose {asked.what} was of attempt {asked.attempt}"
        raise self.violated(
            swarm, peer, f"holds a commit of {where}, and does not hand it to {told}"
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
    events = (Commit,)
    effects = (Report,)
    afters = (Commit,)

    def make_records(self) -> None:
        self._heard: dict[PeerId, _Heard] = self.per_life()
        # by round and shard: who handed it over
        self._doubted: dict[PeerId, dict[tuple[int, int, bytes], set[PeerId]]] = self.per_life()
        # likewise, of those of whom it was not taken
        self._refused = self.per_life(dict[tuple[int, int], set[PeerId]])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Report):
            return
        refused = self._refused[peer]
        if effect.event == "recovering":
            refused.clear()  # in a round that it comes back to it begins anew
        elif effect.event == "refused_result":
            refused.setdefault((effect.fields["round"], effect.fields["shard"]), set()).add(
                effect.fields["from"]
            )
            if len(refused) > ROUNDS_KEPT:
                del refused[next(iter(refused))]

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received) or not isinstance(event.message, Commit):
            return
        self._heard.pop(peer, None)
        core, commit = swarm.inspections.get(peer), event.message
        rounds = core.rolling if core is not None else None
        if core is None or rounds is None or not _counts(core, rounds, event, commit):
            return
        if not _is_lacking(rounds, commit, event.payload):
            return
        shard = rounds.shards[commit.shard]
        serves = shard.server_of(shard.attempt) == peer
        # not to take it: but who hands it over is heard all the same
        promised = commit.attempt < shard.attempt and not serves
        refusable: str | None = ""
        if is_doubtful(core, rounds, commit, event.similarity):
            refusable = self._refusable(peer, core, rounds, event, commit)
        if refusable is not None and not promised:
            self._heard[peer] = _Heard(commit, shard.attempt, serves, refusable)

    def _refusable(
        self,
        peer: PeerId,
        core: Inspection,
        rounds: RollingInspection,
        event: Received,
        commit: Commit,
    ) -> str | None:
        """Why a doubtful commit must not be taken; "": it must be; None: either will do."""
        doubted, where = (
            self._doubted.setdefault(peer, {}),
            (commit.round_id, commit.shard, commit.parent),
        )
        doubted.setdefault(where, set()).add(event.sender)
        if len(doubted) > ROUNDS_KEPT:
            del doubted[next(iter(doubted))]
        refused = self._refused[peer].get(where[:2], set())  # for its length, too
        if len(doubted[where] | refused) <= core.settings.f:
            return must_be_refused(core, rounds, commit, event.similarity) or None
        # Before its own update was there it may have found nothing wrong with it.
        return None if len(refused | {event.sender}) <= core.settings.f else ""

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        heard = self._heard.pop(peer, None)
        rounds = rolling_of(swarm.inspections.get(peer)) if heard is not None else None
        if heard is None or rounds is None or not rounds.shards:
            return
        commit = heard.commit
        if heard.refusable:
            kept = (
                rounds.log.get(commit.round_id) if rounds.round_id == commit.round_id + 1 else None
            )
            taken = (
                kept[commit.shard][0] if kept is not None else rounds.shards[commit.shard].commit
            )
            same = taken is not None and replace(taken, attempt=commit.attempt) == commit
            where = f"round {commit.round_id}, shard {commit.shard}, made by peer {commit.server}"
            self.demand(
                not same, swarm, peer, f"takes a result of {where}, although {heard.refusable}"
            )
        elif rounds.round_id == commit.round_id and rounds.chain == commit.parent:
            shard = rounds.shards[commit.shard]
            if shard.attempt != heard.attempt:
                return  # it stood still before it heard this, and serves no more
            where = f"round {commit.round_id}, shard {commit.shard}, of attempt {commit.attempt}"
            where += (
                f", and serves attempt {heard.attempt}"
                if heard.serves
                else f", and is at attempt {heard.attempt}"
            )
            self.demand(
                shard.commit is not None, swarm, peer, f"does not take a sound commit of {where}"
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
    events = (CommitRequest,)
    effects = (Commit, NotServing)
    afters = (CommitRequest,)

    def make_records(self) -> None:
        self._owed: dict[PeerId, _Owed] = self.per_life()

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received) or not isinstance(event.message, CommitRequest):
            return
        self._owed.pop(peer, None)
        core, asked = swarm.inspections.get(peer), event.message
        rounds = core.rolling if core is not None else None
        if (
            core is None
            or rounds is None
            or not _counts(core, rounds, event, asked)
            or rounds.holds_back
        ):
            return
        kept = (
            range(asked.first, rounds.round_id)
            if rounds.log.get(asked.first) is not None
            else range(0)
        )
        held = [(round_id, rounds.log.get(round_id)) for round_id in kept]
        lacking = frozenset(asked.lacking)
        commits = {
            (round_id, shard)
            for round_id, of_round in held
            for shard in range(len(of_round or ()))
            if not lacking or round_id > asked.first or shard in lacking
        }
        not_serving = not commits and asked.first < rounds.round_id
        if commits or not_serving:
            self._owed[peer] = _Owed(event.sender, commits, not_serving, asked)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        owed = self._owed.get(peer)
        if owed is None or not isinstance(effect, Send) or effect.peer != owed.to:
            return
        told = effect.message
        if isinstance(told, Commit):
            if told.round_id != owed.asked.first or told.attempt >= owed.asked.attempt:
                owed.commits.discard((told.round_id, told.shard))
        elif isinstance(told, NotServing):
            owed.not_serving = False

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        owed = self._owed.pop(peer, None)
        if owed is None:
            return
        self.judged += 1
        if owed.commits or owed.not_serving:
            lacking = (
                f"the commits {sorted(owed.commits)[:3]}"
                if owed.commits
                else "word that they are not kept any more"
            )
            raise self.violated(
                swarm, peer, f"does not give peer {owed.to}, which asks for commits, {lacking}"
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
