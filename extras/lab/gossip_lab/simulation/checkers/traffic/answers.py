"""S15: what is said because of something is said once for it: an answer for each question, a commit
for each reason to."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter

from gossip.core import (
    Ack,
    Aggregate,
    CollectUpdate,
    Commit,
    CommitRequest,
    Counted,
    Effect,
    Event,
    LinkDown,
    Nack,
    NotServing,
    PartialOverdue,
    PeerId,
    Ping,
    PingRequest,
    PushPull,
    Received,
    Report,
    Restored,
    RollingInspection,
    Send,
    StateAttestation,
    StateOffer,
    StateRequest,
    Update,
    UpdateRequest,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.checkers.safety import rolling_of
from gossip_lab.simulation.world import AnySwarm

_ANSWERED_BY: dict[type, str] = {
    Ping: "acks",
    PingRequest: "acks",
    PushPull: "tables",
    Update: "refusals",
    UpdateRequest: "refusals",
    CommitRequest: "refusals",
    StateRequest: "states",
}
"""Kind of answer that a request calls for, once. A request to probe another peer ends in an ack or
a nack."""

_ANSWERS: dict[type, str] = {
    Ack: "acks",
    Nack: "acks",
    PushPull: "tables",
    NotServing: "refusals",
    StateOffer: "states",
    StateAttestation: "states",
}


class AnswersOnce(Checker):
    """S15: nobody answers a peer more often than that has asked. Who has offered an update may take
    it back, once, with the answer that it does not serve that attempt."""

    invariant = "S15"
    events = tuple(_ANSWERED_BY)
    effects = (*_ANSWERS, Update)

    def make_records(self) -> None:
        self._owed = self.per_life(Counter[tuple[PeerId, str]])
        # to whom, of which round, shard and attempt
        self._offered = self.per_life(set[tuple[PeerId, int, int, int]])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if type(event) is not Received or (what := _ANSWERED_BY.get(type(event.message))) is None:
            return
        if type(event.message) is not PushPull or not event.message.reply:
            self._owed[peer][event.sender, what] += 1

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if type(effect) is not Send:
            return
        said, offered = effect.message, self._offered[peer]
        if type(said) is Update:
            offered.add((effect.peer, said.round_id, said.shard, said.attempt))
            return
        if (what := _ANSWERS.get(type(said))) is None:
            return
        if type(said) is PushPull and not said.reply:
            return
        if type(said) is NotServing:
            own = effect.peer, said.asked_round, said.shard, said.attempt
            if own in offered:
                offered.discard(own)
                return
        owed = self._owed[peer]
        self.judged += 1
        owed[effect.peer, what] -= 1
        if owed[effect.peer, what] < 0:
            answer = type(effect.message).__name__
            raise self.violated(
                swarm,
                peer,
                f"sends peer {effect.peer} an answer, {answer}, that it has not asked for",
            )


class CommitsForAReason(Checker):
    """S15: a peer is sent a commit of a shard when it has been made, when one who serves hears of
    it, when who hears of it is at a later attempt than the one that made it, and for each update,
    query or request that comes when it is held, in a pipeline for each repeated word of what was
    counted, too; never more often than that."""

    invariant = "S15"
    events = (Commit, Update, UpdateRequest, CommitRequest, Counted)
    effects = (Aggregate, Commit)

    def make_records(self) -> None:
        self._spread = self.per_life(Counter[tuple[int, int]])
        self._asked = self.per_life(Counter[tuple[PeerId, int, int]])
        # who has asked for all from which rounds on, ascending
        self._wanted = self.per_life(dict[PeerId, list[int]])
        self._sent = self.per_life(Counter[tuple[PeerId, int, int]])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if type(event) is not Received:
            return
        message = event.message
        if isinstance(message, CommitRequest):
            insort(self._wanted[peer].setdefault(event.sender, []), message.first)
            return
        rounds = rolling_of(swarm.inspections.get(peer))
        if isinstance(message, Counted) and message.again:
            self._asked[peer][event.sender, message.round_id, 0] += 1
            return
        if (
            rounds is None
            or not isinstance(message, Commit | Update | UpdateRequest)
            or not _calls_for_a_commit(rounds, message)
        ):
            return
        if isinstance(message, Commit):
            self._spread[peer][message.round_id, message.shard] += 1
        else:
            self._asked[peer][event.sender, message.round_id, message.shard] += 1

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if type(effect) is Aggregate:
            if effect.step == "measure":
                return
            self._spread[peer][effect.round_id, effect.shard] += 1
            return
        if type(effect) is not Send or type(effect.message) is not Commit:
            return
        to, round_id, shard = effect.peer, effect.message.round_id, effect.message.shard
        self._sent[peer][to, round_id, shard] += 1
        reasons = self._spread[peer][round_id, shard] + self._asked[peer][to, round_id, shard]
        reasons += bisect_right(self._wanted[peer].get(to, ()), round_id)
        self.judged += 1
        if self._sent[peer][to, round_id, shard] > reasons:
            text = (
                f"sends peer {to} the commit of round {round_id}, shard {shard} {reasons + 1} times"
            )
            raise self.violated(swarm, peer, f"{text}, and has had reason for {reasons}")


def _calls_for_a_commit(
    rounds: RollingInspection, message: Commit | Update | UpdateRequest
) -> bool:
    """Whether a message is a reason to send the commit of its shard to somebody."""
    if message.round_id != rounds.round_id or message.shard >= len(rounds.shards):
        return True  # it may be, when its round has come
    shard = rounds.shards[message.shard]
    if not isinstance(message, Commit):  # else it is waited for
        return shard.commit is not None or rounds.holds_back
    return shard.commit is None and (
        shard.server_of(shard.attempt) == rounds.local or message.made_at < shard.attempt
    )


class OffersOnce(Checker):
    """S15: an update is offered to the server of an attempt once, again when that asks for it, and
    by one that has taken over a state or gone back to its own, or (in a pipeline) is asked for
    another sum; the server of an attempt asks each
    of the others once, and again when it is told that others wait for what it is to measure, when
    the link to the other broke, and when the other has answered that it takes part in no round."""

    invariant = "S15"
    events = (UpdateRequest, Restored, PartialOverdue, LinkDown, NotServing)
    effects = (Update, UpdateRequest, Report, CollectUpdate)

    def make_records(self) -> None:
        self._said = self.per_life(Counter[tuple[PeerId, type, int, int, int, bytes]])
        self._resumed: Counter[PeerId] = Counter()
        # how often it was told that of a round and shard
        self._overdue = self.per_life(Counter[tuple[int, int]])
        self._sums = self.per_life(Counter[int])  # that were asked for, by round

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._resumed[peer] = 0

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if type(event) is Restored:
            self._resumed[peer] += 1
        elif type(event) is Received and type(event.message) is UpdateRequest:
            asked = event.message
            self._said[peer][
                event.sender, Update, asked.round_id, asked.shard, asked.attempt, asked.parent
            ] -= 1
        elif type(event) is Received and type(event.message) is PartialOverdue:
            self._overdue[peer][event.message.round_id, event.message.shard] += 1
        elif type(event) is LinkDown:
            self._ask_anew(peer, event.peer)
        elif type(event) is Received and type(event.message) is NotServing:
            told = event.message
            self._ask_anew(peer, event.sender, (told.asked_round, told.shard, told.attempt))

    def _ask_anew(
        self, peer: PeerId, other: PeerId, what: tuple[int, int, int] | None = None
    ) -> None:
        """``other`` may be asked again for its update: any, or that of a round, shard, attempt."""
        said = self._said[peer]
        for key in [key for key in said if key[:2] == (other, UpdateRequest)]:
            if what is None or key[2:5] == what:
                del said[key]

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if type(effect) is Report:
            self._resumed[peer] += effect.event == "kept_own_state"
            return
        if type(effect) is CollectUpdate:
            self._sums[peer][effect.round_id] += 1
            return
        if type(effect) is not Send or not isinstance(effect.message, Update | UpdateRequest):
            return
        message = effect.message
        key = (
            effect.peer,
            type(message),
            message.round_id,
            message.shard,
            message.attempt,
            message.parent,
        )
        said = self._said[peer]
        said[key] += 1
        self.judged += 1
        again = (
            self._overdue[peer][message.round_id, message.shard]
            if type(message) is UpdateRequest
            else max(0, self._sums[peer][message.round_id] - 1)
        )
        if said[key] > 1 + self._resumed[peer] + again:
            what = (
                f"{type(message).__name__} of round {message.round_id}, shard {message.shard}, "
                f"attempt {message.attempt}"
            )
            raise self.violated(
                swarm, peer, f"sends peer {effect.peer} its {what} {said[key]} times"
            )


__all__ = ["AnswersOnce", "CommitsForAReason", "OffersOnce"]
