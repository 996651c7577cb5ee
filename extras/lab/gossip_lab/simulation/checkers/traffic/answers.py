"""S15: a message that needs a cause is sent once per cause: one reply per request, and one commit
per reason to send it."""

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

_REPLIES: dict[type, str] = {
    **dict.fromkeys((Ping, PingRequest, Ack, Nack), "acks"),
    PushPull: "tables",
    **dict.fromkeys((Update, UpdateRequest, CommitRequest, NotServing), "refusals"),
    **dict.fromkeys((StateRequest, StateOffer, StateAttestation), "states"),
}
"""Message type -> kind of exchange, for requests and replies. Each request is followed by one reply
of its kind. The reply to a request for an indirect probe is an ack or a nack."""


class AnswersOnce(Checker):
    """S15: a peer sends no more replies to another peer than it has received requests from it. A
    peer that has offered an update may withdraw it once, with the message ``NotServing``."""

    invariant = "S15"
    needs = ""
    _owed = PerLife(Counter[tuple[PeerId, str]])
    # (receiver, round, shard, attempt) of each offered update.
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
            self._owed[event.sender, _REPLIES[type(asked)]] += 1

    @on_effect
    def record_offer(self, send: Send, update: Update) -> None:
        self._offered.add((send.peer, update.round_id, update.shard, update.attempt))

    @on_effect
    def judge(
        self,
        send: Send,
        reply: Ack | Nack | PushPull | NotServing | StateOffer | StateAttestation,
    ) -> None:
        if isinstance(reply, PushPull) and not reply.reply:
            return
        if isinstance(reply, NotServing):
            own = send.peer, reply.asked_round, reply.shard, reply.attempt
            if own in self._offered:
                self._offered.discard(own)
                return
        owed, key = self._owed, (send.peer, _REPLIES[type(reply)])
        owed[key] -= 1
        text = f"sends peer {send.peer} a reply, {type(reply).__name__}, that it has not requested"
        self.demand(owed[key] >= 0, text)


class CommitsForAReason(Checker):
    """S15: a peer sends another peer the commit of a shard at most once per reason.

    It is a reason that the sender has made the commit, or has received it as the server or in a
    later attempt than that of the commit. An update or a request from the other peer after the
    commit is also a reason, and so is, in a pipeline, its repeated report of counted micro-batches.
    """

    invariant = "S15"
    _spread = PerLife(Counter[tuple[int, int]])
    _asked = PerLife(Counter[tuple[PeerId, int, int]])
    # Peer -> first rounds of its requests for all commits, ascending.
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
            f"but has had reason for only {reasons}",
        )


def _calls_for_a_commit(
    rounds: RollingInspection, message: Commit | Update | UpdateRequest
) -> bool:
    """Whether the message is a reason to send the commit of its shard."""
    if message.round_id != rounds.round_id or message.shard >= len(rounds.shards):
        return True  # it may become a reason when its round begins
    shard = rounds.shards[message.shard]
    if not isinstance(message, Commit):  # without a commit, the server waits for updates
        return shard.commit is not None or rounds.holds_back
    return shard.commit is None and (
        shard.server_of(shard.attempt) == rounds.local or message.made_at < shard.attempt
    )


class OffersOnce(Checker):
    """S15: a peer offers its update once to the server of an attempt. It offers the update again if
    the server requests it, if the peer has restored a state or has kept its own after a recovery,
    or (in a pipeline) if another sum is requested.

    The server of an attempt requests each other peer's update once. It requests the update again if
    other peers report that its statistics are overdue, if the link to the peer broke, or if the
    peer has replied ``NotServing``.
    """

    invariant = "S15"
    _times_sent = PerLife(Counter[tuple[PeerId, type, int, int, int, bytes]])
    _resumed = PerLife(int)
    # (round, shard) -> number of reports that statistics are overdue.
    _overdue = PerLife(Counter[tuple[int, int]])
    _sums = PerLife(Counter[int])  # round -> number of requested sums

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
        self._times_sent[_update(event.sender, Update, asked)] -= 1

    @on_event
    def record_overdue(self, event: Received, overdue: PartialOverdue) -> None:
        self._overdue[overdue.round_id, overdue.shard] += 1

    @on_event
    def forget_requests(self, event: LinkDown) -> None:
        self._forget(event.peer, lambda place: True)

    @on_event
    def forget_request(self, event: Received, reply: NotServing) -> None:
        which = reply.asked_round, reply.shard, reply.attempt
        self._forget(event.sender, lambda place: place == which)

    def _forget(self, other: PeerId, chosen: Callable[[tuple[int, int, int]], bool]) -> None:
        """Allow another request to ``other`` for its updates of each (round, shard, attempt) for
        which ``chosen`` returns True."""
        times = self._times_sent
        for key in [key for key in times if key[:2] == (other, UpdateRequest) and chosen(key[2:5])]:
            del times[key]

    @on_effect
    def judge(self, send: Send, message: Update | UpdateRequest) -> None:
        kind = type(message)
        key, times = _update(send.peer, kind, message), self._times_sent
        times[key] += 1
        again = (
            self._overdue[message.round_id, message.shard]
            if kind is UpdateRequest
            else max(0, self._sums[message.round_id] - 1)
        )
        self.demand(
            times[key] <= 1 + self._resumed + again,
            f"sends peer {send.peer} its {kind.__name__} of round {message.round_id}, shard "
            f"{message.shard}, attempt {message.attempt} {times[key]} times",
        )


def _update(
    peer: PeerId, kind: type, of: Update | UpdateRequest
) -> tuple[PeerId, type, int, int, int, bytes]:
    return peer, kind, of.round_id, of.shard, of.attempt, of.parent
