"""Departures: the announced ends of other peers, with their rounds, and the departure of the local
peer.

A peer that is requested to stop leaves at once if it has sent nothing for its present round. If
other peers may rely on its update, it leaves at the end of that round. So no server has an update
from the leaving peer for the announced round, and the quorum of this round is a majority of the
other peers. The run therefore continues even if most of the roster leave at the same moment. Still,
at most one side of a partition can continue.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from gossip.core.events import Effect, Stop
from gossip.core.frozen import record
from gossip.core.messages import Hello, PeerId
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers


class Departures:
    """Announced departures of other peers.

    Args:
        kept: Number of last rounds of an ended peer. It still sends the commits of these rounds to
            peers that are behind.
    """

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.done: dict[PeerId, int] = {}
        """Round in which each peer ends, as the peer has announced."""
        self._left: dict[PeerId, int] = {}

    def __len__(self) -> int:
        return len(self.done)

    def record_departure(self, peer: PeerId, hello: Hello) -> None:
        """Record that ``peer`` has announced its end, because it has completed the training or
        leaves earlier."""
        self.done[peer] = hello.round_id
        if hello.stage == "leaving":
            self._left[peer] = hello.round_id

    def record_return(self, peer: PeerId) -> None:
        self.done.pop(peer, None)
        self._left.pop(peer, None)

    def is_done(self, peer: PeerId, round_id: int) -> bool:
        """Whether ``peer`` will send nothing in ``round_id``. A peer that ended at most ``kept``
        rounds later still sends the commit of this round."""
        return not 0 < self.done.get(peer, round_id + 1) - round_id <= self.kept

    def has_announced(self, peer: PeerId) -> bool:
        """Whether ``peer`` has announced its end."""
        return peer in self.done

    def leaves(self, peer: PeerId) -> bool:
        return peer in self._left

    def count_left(self, roster: Collection[PeerId], round_id: int) -> int:
        """Return the number of peers of the roster that left before they sent an update for
        ``round_id``."""
        return (
            sum([self._left.get(peer, round_id + 1) <= round_id for peer in roster])
            if self._left
            else 0
        )


@record
class PeerTimer:
    """Timer of the peer. ``hello``: send hellos again. ``watch``: check the quorum. ``leave``:
    leave, even in the middle of a round. ``confirm``: request the confirmation of the last round
    again."""

    what: Literal["hello", "watch", "leave", "confirm"]


class LocalLeave:
    """Departure of the local peer.

    Methods take ``must_stay``: whether other peers may rely on messages of the local peer in its
    present round, ``round_id``.

    Attributes:
        asked: Event that requested the departure, while the peer waits for the end of its round;
            otherwise None.
    """

    def __init__(self, settings: CoreSettings, timers: Timers[Any]) -> None:
        self.settings, self.timers = settings, timers
        self.asked: Stop | None = None
        self._round, self._until, self._urged = -1, 0.0, False

    def put_off(
        self, event: Stop, round_id: int, must_stay: bool, now: float
    ) -> list[Effect] | None:
        """Defer the departure to the end of the round.

        Returns: None if the peer leaves now, because no other peer relies on it or this is the
            third request. A trainer that receives SIGTERM sends two requests, and its end sends the
            third.
        """
        if self.breaks_obligation(must_stay) and not self._urged:
            self._urged = True
            return []
        if event.completed or self.asked is not None or not must_stay:
            return None
        self.asked, self._round, self._until = (
            event,
            round_id,
            now + self.settings.rounds.drain_timeout_s,
        )
        return [self.timers.set(self._until, PeerTimer("leave"))]

    def since(self, now: float) -> float:
        """Return the time of the request to leave. The drain timeout starts at this time. It covers
        both the rest of the round and the wait for peers that are behind."""
        return (
            now
            if self.asked is None
            else min(now, self._until - self.settings.rounds.drain_timeout_s)
        )

    def breaks_obligation(self, must_stay: bool) -> bool:
        """Whether the peer would leave during a round in which other peers rely on it. In this case
        the peer must not announce that it has sent nothing."""
        return self.asked is not None and must_stay

    def is_due(self, round_id: int, must_stay: bool, now: float) -> bool:
        """Whether the peer may now leave after a deferred departure."""
        return not self.breaks_obligation(must_stay) or round_id > self._round or now >= self._until
