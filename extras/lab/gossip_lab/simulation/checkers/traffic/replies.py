"""S15: a message that needs a cause is sent once per cause: one reply per request, and one commit
per reason to send it."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter

from gossip.core import (
    Ack,
    Aggregate,
    Commit,
    CommitRequest,
    Counted,
    LinkDown,
    Nack,
    NotServing,
    PeerId,
    Ping,
    PingRequest,
    PushPull,
    Received,
    Send,
    StateAttestation,
    StateOffer,
    StateRequest,
    Update,
    UpdateRequest,
)
from gossip_lab.inspection import RollingInspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    keep_latest,
    on_effect,
    on_event,
)

KEPT = 512  # number of updates and requests whose repetitions are counted
REPEATS_MAX = 8

_REPLIES: dict[type, str] = {
    **dict.fromkeys((Ping, PingRequest, Ack, Nack), "acks"),
    PushPull: "tables",
    **dict.fromkeys((Update, UpdateRequest, CommitRequest, NotServing), "refusals"),
    **dict.fromkeys((StateRequest, StateOffer, StateAttestation), "states"),
}
"""Message type -> kind of exchange, for requests and replies. Each request is followed by one reply
of its kind. The reply to a request for an indirect probe is an ack or a nack."""


class OneReplyPerRequest(Checker):
    """S15: a peer sends no more replies to another peer than it has received requests from it. A
    peer that has offered an update may withdraw it once, with the message ``NotServing``."""

    invariant = "S15"
    needs = ""
    _owed_replies = PerIncarnation(Counter[tuple[PeerId, str]])
    # (receiver, round, shard, attempt) of each offered update.
    _offered = PerIncarnation(set[tuple[PeerId, int, int, int]])

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
            self._owed_replies[event.sender, _REPLIES[type(asked)]] += 1

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
        owed, key = self._owed_replies, (send.peer, _REPLIES[type(reply)])
        owed[key] -= 1
        text = f"sends peer {send.peer} a reply, {type(reply).__name__}, that it has not requested"
        self.demand(owed[key] >= 0, text)


class OneCommitPerReason(Checker):
    """S15: a peer sends another peer the commit of a shard at most once per reason.

    It is a reason that the sender has made the commit, or has received it as the server or in a
    later attempt than that of the commit. An update or a request from the other peer after the
    commit is also a reason, and so is, in a pipeline, its repeated report of counted micro-batches.
    """

    invariant = "S15"
    _own_reasons = PerIncarnation(Counter[tuple[int, int]])
    _asked = PerIncarnation(Counter[tuple[PeerId, int, int]])
    # Peer -> first rounds of its requests for all commits, ascending.
    _commit_requests = PerIncarnation(dict[PeerId, list[int]])
    _sent = PerIncarnation(Counter[tuple[PeerId, int, int]])

    @on_event
    def record_request(self, event: Received, ask: CommitRequest) -> None:
        insort(self._commit_requests.setdefault(event.sender, []), ask.first)

    @on_event
    def record_counted(self, event: Received, counted: Counted) -> None:
        self._asked[event.sender, counted.round_id, 0] += counted.again

    @on_event
    def record_reason(self, event: Received, message: Commit | Update | UpdateRequest) -> None:
        rounds, place = self.core.rolling, (message.round_id, message.shard)
        if rounds is None or not _calls_for_a_commit(rounds, message):
            return
        if isinstance(message, Commit):
            self._own_reasons[place] += 1
        else:
            self._asked[event.sender, *place] += 1

    @on_effect
    def record_made(self, ask: Aggregate) -> None:
        if ask.step != "measure":
            self._own_reasons[ask.round_id, ask.shard] += 1

    @on_effect
    def judge(self, send: Send, commit: Commit) -> None:
        to = send.peer
        round_id = commit.round_id
        shard = commit.shard
        self._sent[to, round_id, shard] += 1
        reasons = (
            self._own_reasons[round_id, shard]
            + self._asked[to, round_id, shard]
            + bisect_right(self._commit_requests.get(to, ()), round_id)
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


class BoundedUpdateRepetitions(Checker):
    """S15: a peer sends another peer the same update, or the same request for an update, at most
    ``REPEATS_MAX`` times. A request for the update and a broken link allow one more."""

    invariant = "S15"
    _times_sent = PerIncarnation(Counter[tuple[PeerId, type, int, int, int, bytes]])

    @on_event
    def record_request(self, event: Received, asked: UpdateRequest) -> None:
        self._times_sent[_update(event.sender, Update, asked)] -= 1

    @on_event
    def forget_sent(self, event: LinkDown) -> None:
        for key in [key for key in self._times_sent if key[0] == event.peer]:
            del self._times_sent[key]

    @on_effect
    def judge(self, send: Send, message: Update | UpdateRequest) -> None:
        key = _update(send.peer, type(message), message)
        times = self._times_sent
        times[key] += 1
        self.demand(
            times[key] <= REPEATS_MAX,
            f"sends peer {send.peer} its {type(message).__name__} of round {message.round_id}, "
            f"shard {message.shard}, attempt {message.attempt} {times[key]} times",
        )
        keep_latest(times, KEPT)


def _update(
    peer: PeerId, kind: type, of: Update | UpdateRequest
) -> tuple[PeerId, type, int, int, int, bytes]:
    return peer, kind, of.round_id, of.shard, of.attempt, of.parent
