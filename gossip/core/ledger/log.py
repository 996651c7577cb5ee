"""Log of the latest commits with their payloads, for peers that are slightly behind. The number of
its rounds and of its bytes is bounded."""

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
from gossip.core.settings import COMMITS_BYTES_MAX, KINDS_KEPT, ROUNDS_KEPT_ALWAYS, TRUST_ROUNDS

Held: TypeAlias = tuple[tuple[Commit, Payload | None], ...]
"""Commits of one round with their payloads, one for each shard."""


class CommitLog:
    """Commits of the latest rounds.

    Args:
        rounds_max: Maximum number of rounds.
        bytes_max: Maximum number of bytes. The last two rounds are stored even if they exceed this
            number.

    Attributes:
        previous: Aggregates of the last round with a result, one for each shard. The key is the
            kind of step; only the latest ``KINDS_KEPT`` kinds are stored.
    """

    def __init__(self, rounds_max: int, bytes_max: int) -> None:
        self.rounds_max, self.bytes_max = rounds_max, bytes_max
        self._rounds: OrderedDict[int, Held] = OrderedDict()
        self._bytes = 0
        self.previous: dict[int, tuple[Payload, ...]] = {}
        # ``Commit.length`` of each shard in the recent rounds, by kind of step
        self._lengths: dict[int, deque[tuple[float, ...]]] = {}

    def append(self, round_id: int, held: Held) -> None:
        kind = held[0][0].kind  # if the shards have different kinds, the round has no result
        payloads = tuple(
            [payload for commit, payload in held if payload is not None and commit.kind == kind]
        )
        if len(payloads) == len(held):
            self.previous.pop(kind, None)
            self.previous[kind] = payloads
            if held[0][0].length:
                lengths = self._lengths.setdefault(kind, deque(maxlen=TRUST_ROUNDS))
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
        """Return the largest ``Commit.length`` of a shard in the recent rounds with this kind of
        step; 0.0 if unknown."""
        return max([of[shard] for of in self._lengths.get(kind, ())], default=0.0)

    def get(self, round_id: int) -> Held | None:
        return self._rounds.get(round_id)

    def since(self, first: int) -> list[Held]:
        """Return all rounds from ``first`` on; an empty list if ``first`` is not stored."""
        if first not in self._rounds:
            return []
        return [held for round_id, held in self._rounds.items() if round_id >= first]

    def catch_up(
        self, peer: PeerId, request: CommitRequest, round_id: int, chain: bytes
    ) -> list[Effect]:
        """Send the requested commits to a peer that is behind. If these commits are not stored,
        reply with the present round.

        Args:
            chain: H of the round before the first requested round, or b"" if it is not stored.
        """
        rounds = self.since(request.first)
        if not rounds and request.first < round_id:
            return [Send(peer, NotServing(request.lineage, request.first, 0, 0, round_id, chain))]
        # The peer may be bound to a later attempt only in the first requested round.
        attempts = [request.attempt, *[0] * len(rounds)]
        effects: list[Effect] = []
        lacking, nbytes = frozenset(request.lacking), 0
        for held, at in zip(rounds, attempts, strict=False):
            if effects and nbytes + _weight(held) > COMMITS_BYTES_MAX:
                break  # the peer will request the other commits later
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
        """Reply to a message about a completed round. ``chain`` is H of the round before that
        round. Most of these messages were sent before the commit arrived at their sender, and need
        no reply."""
        if isinstance(message, Commit | PartialStatistics | PartialOverdue):
            return []
        held = self.get(message.round_id)
        if held is not None and message.shard < len(held):
            commit, payload = held[message.shard]
            # If the server of the commit has restarted and requests updates for its former attempt,
            # it does not have the commit any more.
            is_request = isinstance(message, UpdateRequest)
            if message.attempt > commit.attempt or (
                is_request and message.attempt == commit.attempt
            ):
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
    """Re-issue a commit to a peer in ``attempt``. The peer accepts no commit of an earlier attempt,
    so the commit is sent under ``attempt``."""
    return Send(peer, replace(commit, attempt=max(attempt, commit.attempt)), payload)


def _weight(held: Held) -> int:
    return sum([payload.nbytes for _, payload in held if payload is not None])
