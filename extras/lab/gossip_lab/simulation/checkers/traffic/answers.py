"""S15: what is said because of something is said once for it: an answer for each question, a commit
for each reason to."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable

from gossip.core import (
    Ack,
    Aggregate,
    CollectUpdate,
    Commit,
    CommitRequest,
    Counted,
    LinkDown,
    Message,
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
from gossip_lab.simulation.checkers.base import Checker, PerLife
from gossip_lab.simulation.checkers.watching import on_effect, on_event, on_report

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


class AnswersOnce(Checker):
    """S15: nobody answers a peer more often than that has asked. Who has offered an update may take
    it back, once, with the answer that it does not serve that attempt."""

    invariant = "S15"
    needs = ""
    _owed = PerLife(Counter[tuple[PeerId, str]])
    # to whom, of which round, shard and attempt
    _offered = PerLife(set[tuple[PeerId, int, int, int]])

    @on_event
    def record_request(
        self,
        event: Received,
        asked: Ping
        | PingRequest
        | PushPull
        | Update
        | UpdateRequest
        | CommitRequest
        | StateRequest,
    ) -> None:
        if not isinstance(asked, PushPull) or not asked.reply:
            self._owed[event.sender, _ANSWERED_BY[type(asked)]] += 1

    @on_effect
    def record_offer(self, send: Send, update: Update) -> None:
        offer = send.peer, update.round_id, update.shard, update.attempt
        self._offered.add(offer)

    @on_effect
    def judge_refusal(self, send: Send, answer: NotServing) -> None:
        own = send.peer, answer.asked_round, answer.shard, answer.attempt
        if own in self._offered:
            self._offered.discard(own)
        else:
            self._judge(send.peer, "refusals", answer)

    @on_effect
    def judge_table(self, send: Send, table: PushPull) -> None:
        if table.reply:
            self._judge(send.peer, "tables", table)

    @on_effect
    def judge_word(self, send: Send, answer: Ack | Nack) -> None:
        self._judge(send.peer, "acks", answer)

    @on_effect
    def judge_state(self, send: Send, answer: StateOffer | StateAttestation) -> None:
        self._judge(send.peer, "states", answer)

    def _judge(self, to: PeerId, what: str, answer: Message) -> None:
        owed = self._owed
        owed[to, what] -= 1
        name = type(answer).__name__
        text = f"sends peer {to} an answer, {name}, that it has not asked for"
        self.demand(owed[to, what] >= 0, text)


class CommitsForAReason(Checker):
    """S15: a peer is sent a commit of a shard when it has been made, when one who serves hears of
    it, when who hears of it is at a later attempt than the one that made it, and for each update,
    query or request that comes when it is held, in a pipeline for each repeated word of what was
    counted, too; never more often than that."""

    invariant = "S15"
    _spread = PerLife(Counter[tuple[int, int]])
    _asked = PerLife(Counter[tuple[PeerId, int, int]])
    # who has asked for all from which rounds on, ascending
    _wanted = PerLife(dict[PeerId, list[int]])
    _sent = PerLife(Counter[tuple[PeerId, int, int]])

    @on_event
    def record_request(self, event: Received, ask: CommitRequest) -> None:
        insort(self._wanted.setdefault(event.sender, []), ask.first)

    @on_event
    def record_counted(self, event: Received, counted: Counted) -> None:
        self._asked[event.sender, counted.round_id, 0] += counted.again

    @on_event
    def record_reason(self, event: Received, message: Commit | Update | UpdateRequest) -> None:
        rounds, place = self.core.rolling, (message.round_id, message.shard)
        if rounds is None or not _calls_for_a_commit(rounds, message):
            return
        if isinstance(message, Commit):
            self._spread[place] += 1
        else:
            self._asked[event.sender, *place] += 1

    @on_effect
    def record_made(self, ask: Aggregate) -> None:
        if ask.step != "measure":
            self._spread[ask.round_id, ask.shard] += 1

    @on_effect
    def judge(self, send: Send, commit: Commit) -> None:
        to, round_id, shard = send.peer, commit.round_id, commit.shard
        self._sent[to, round_id, shard] += 1
        reasons = (
            self._spread[round_id, shard]
            + self._asked[to, round_id, shard]
            + bisect_right(self._wanted.get(to, ()), round_id)
        )
        self.demand(
            self._sent[to, round_id, shard] <= reasons,
            f"sends peer {to} the commit of round {round_id}, shard {shard} {reasons + 1} times, "
            f"and has had reason for {reasons}",
        )


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
    _said = PerLife(Counter[tuple[PeerId, type, int, int, int, bytes]])
    _resumed = PerLife(int)
    # how often it was told that of a round and shard
    _overdue = PerLife(Counter[tuple[int, int]])
    _sums = PerLife(Counter[int])  # that were asked for, by round

    @on_event
    def record_restored(self, event: Restored) -> None:
        self._resumed += 1

    @on_report("kept_own_state")
    def record_kept(self, report: Report) -> None:
        self._resumed += 1

    @on_effect
    def record_sum(self, collect: CollectUpdate) -> None:
        self._sums[collect.round_id] += 1

    @on_event
    def record_request(self, event: Received, asked: UpdateRequest) -> None:
        self._said[_update(event.sender, Update, asked)] -= 1

    @on_event
    def record_overdue(self, event: Received, overdue: PartialOverdue) -> None:
        self._overdue[overdue.round_id, overdue.shard] += 1

    @on_event
    def forget_requests(self, event: LinkDown) -> None:
        self._forget(event.peer, lambda place: True)

    @on_event
    def forget_request(self, event: Received, told: NotServing) -> None:
        which = told.asked_round, told.shard, told.attempt
        self._forget(event.sender, lambda place: place == which)

    def _forget(self, other: PeerId, chosen: Callable[[tuple[int, int, int]], bool]) -> None:
        """``other`` may be asked again for its update of the chosen rounds, shards, attempts."""
        said = self._said
        for key in [key for key in said if key[:2] == (other, UpdateRequest) and chosen(key[2:5])]:
            del said[key]

    @on_effect
    def judge(self, send: Send, message: Update | UpdateRequest) -> None:
        kind = type(message)
        key, said = _update(send.peer, kind, message), self._said
        said[key] += 1
        again = (
            self._overdue[message.round_id, message.shard]
            if kind is UpdateRequest
            else max(0, self._sums[message.round_id] - 1)
        )
        self.demand(
            said[key] <= 1 + self._resumed + again,
            f"sends peer {send.peer} its {kind.__name__} of round {message.round_id}, shard "
            f"{message.shard}, attempt {message.attempt} {said[key]} times",
        )


def _update(
    peer: PeerId, kind: type, of: Update | UpdateRequest
) -> tuple[PeerId, type, int, int, int, bytes]:
    return peer, kind, of.round_id, of.shard, of.attempt, of.parent
