"""The last commits with their payloads, for those who are a little behind.
Bounded in rounds and in bytes."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import replace
from typing import TypeAlias

from gossip.core.events import Effect, Payload, Send
from gossip.core.messages import (
    Commit,
    CommitRequest,
    NotServing,
    PartialOverdue,
    PartialStatistics,
    PeerId,
    Update,
    UpdateRequest,
)

Held: TypeAlias = tuple[tuple[Commit, Payload | None], ...]
"""The commits of one round with their payloads, one a shard."""

ROUNDS_KEPT_ALWAYS = 2
KINDS_KEPT = 4
LENGTHS_KEPT = 20
"""Rounds whose lengths of updates are usual."""
ANSWER_BYTES = 64 * 2**20
"""Size limit of a reply to a peer that is behind, in bytes. It contains the commits of at least one
round."""


class CommitLog:
    """Args: ``rounds_max`` and ``bytes_max`` bound it;
        the last two rounds are kept whatever they weigh.

    ``previous`` are the aggregates, one a shard, of the last round of each kind that changed
    anything, by kinds, of which the latest ``KINDS_KEPT`` are kept.
    """

    def __init__(self, rounds_max: int, bytes_max: int) -> None:
        self.rounds_max, self.bytes_max = rounds_max, bytes_max
        self._rounds: OrderedDict[int, Held] = OrderedDict()
        self._bytes = 0
        self.previous: dict[int, tuple[Payload, ...]] = {}
        # by kinds, what commits of the last rounds have said of the length of updates, by shards
        self._lengths: dict[int, deque[tuple[float, ...]]] = {}

    def append(self, round_id: int, held: Held) -> None:
        kind = held[0][0].kind  # a round with shards of another kind is lost
        payloads = tuple(
            [payload for commit, payload in held if payload is not None and commit.kind == kind]
        )
        if len(payloads) == len(held):
            self.previous.pop(kind, None)
            self.previous[kind] = payloads
            if held[0][0].length:
                lengths = self._lengths.setdefault(kind, deque(maxlen=LENGTHS_KEPT))
                lengths.append(tuple([commit.length for commit, _ in held]))
            if len(self.previous) > KINDS_KEPT:
                oldest = next(iter(self.previous))
                del self.previous[oldest]
                self._lengths.pop(oldest, None)
        self._rounds[round_id] = held
        self._bytes += _weight(held)
        while len(self._rounds) > ROUNDS_KEPT_ALWAYS and (
            len(self._rounds) > self.rounds_max or self._bytes > self.bytes_max
        ):
            _, old = self._rounds.popitem(last=False)
            self._bytes -= _weight(old)

    def usual(self, kind: int, shard: int) -> float:
        """Return the longest that updates for a kind of step were lately; 0.0: not known."""
        return max([of[shard] for of in self._lengths.get(kind, ())], default=0.0)

    def get(self, round_id: int) -> Held | None:
        return self._rounds.get(round_id)

    def since(self, first: int) -> list[Held]:
        """Every round from ``first`` on; empty when ``first`` is not kept any more."""
        if first not in self._rounds:
            return []
        return [held for round_id, held in self._rounds.items() if round_id >= first]

    def catch_up(
        self, peer: PeerId, request: CommitRequest, round_id: int, chain: bytes
    ) -> list[Effect]:
        """One that is behind asks: send what we have,
        or say where we are when it is too far behind for that.

        Args:
            chain: H of the round before the one that is asked for, or b"".
        """
        rounds = self.since(request.first)
        if not rounds and request.first < round_id:
            return [Send(peer, NotServing(request.lineage, request.first, 0, 0, round_id, chain))]
        # Of the rounds after the first it has promised nothing yet.
        attempts = [request.attempt, *[0] * len(rounds)]
        effects: list[Effect] = []
        lacking, nbytes = frozenset(request.lacking), 0
        for held, at in zip(rounds, attempts, strict=False):
            if effects and nbytes + _weight(held) > ANSWER_BYTES:
                break  # it asks for the rest when it has these
            nbytes += _weight(held)
            wanted = [
                each
                for each in held
                if not lacking or each[0].round_id > request.first or each[0].shard in lacking
            ]
            effects += [reissue(peer, *each, at) for each in wanted]
        return effects

    def answer_late(
        self,
        peer: PeerId,
        message: Update | UpdateRequest | Commit | PartialStatistics | PartialOverdue,
        round_id: int,
        chain: bytes,
    ) -> list[Effect]:
        """A message of a round that is over here, and H of the round before. Most often it crossed
        the commit on the way, and needs no answer."""
        if isinstance(message, Commit | PartialStatistics | PartialOverdue):
            return []
        held = self.get(message.round_id)
        if held is not None and message.shard < len(held):
            commit, payload = held[message.shard]
            # Who came back and asks in the attempt of its former life does not know of that commit.
            asks = isinstance(message, UpdateRequest)
            if message.attempt > commit.attempt or (asks and message.attempt == commit.attempt):
                return [reissue(peer, commit, payload, message.attempt)]
        if message.round_id == round_id - 1:
            return []
        return [
            Send(
                peer,
                NotServing(
                    message.lineage,
                    message.round_id,
                    message.shard,
                    message.attempt,
                    round_id,
                    chain,
                ),
            )
        ]

    def clear(self) -> None:
        self._rounds.clear()
        self._bytes, self.previous, self._lengths = 0, {}, {}


def reissue(peer: PeerId, commit: Commit, payload: Payload | None, attempt: int) -> Send:
    """Hands a commit on to one that is at ``attempt`` already,
    and would not take it under an earlier one."""
    return Send(peer, replace(commit, attempt=max(attempt, commit.attempt)), payload)


def _weight(held: Held) -> int:
    return sum([payload.nbytes for _, payload in held if payload is not None])
