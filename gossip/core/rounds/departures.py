"""Peers that have announced that they take part no more, and from which round on.

A peer that is requested to stop leaves at once if it has sent nothing for its present round. If
others may count on what it has sent, it leaves when that round is over. So its farewell can name a
round from which on no server has an answer of it. The quorum of this round is a majority of the
others. So they go on even if most of the roster leave at the same moment, and still at most one
side of a partition can go on.
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
    """Announcements of the others. ``kept``: number of rounds for which a peer keeps commits for
    peers that are behind it."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.done: dict[PeerId, int] = {}
        """Peer -> the round in which it has announced that it takes part no more."""
        self._left: dict[PeerId, int] = {}

    def __len__(self) -> int:
        return len(self.done)

    def record_departure(self, peer: PeerId, hello: Hello) -> None:
        """``peer`` has announced its end: it has completed the training, or leaves before that."""
        self.done[peer] = hello.round_id
        if hello.stage == "leaving":
            self._left[peer] = hello.round_id

    def record_return(self, peer: PeerId) -> None:
        self.done.pop(peer, None)
        self._left.pop(peer, None)

    def is_done(self, peer: PeerId, round_id: int) -> bool:
        """Whether nothing of ``peer`` is to come in this round. One that has ended a few rounds
        later still hands out the result of this one."""
        return not 0 < self.done.get(peer, round_id + 1) - round_id <= self.kept

    def has_announced(self, peer: PeerId) -> bool:
        """Whether ``peer`` has announced its end itself."""
        return peer in self.done

    def leaves(self, peer: PeerId) -> bool:
        return peer in self._left

    def count_left(self, roster: Collection[PeerId], round_id: int) -> int:
        """How many of the roster have left before they answered in this round."""
        return (
            sum([self._left.get(peer, round_id + 1) <= round_id for peer in roster])
            if self._left
            else 0
        )


@record
class PeerTimer:
    """Due task. ``hello``: send hellos again; ``watch``: check whether there is a quorum;
    ``leave``: leave, even in the middle of a round; ``confirm``: request confirmation of the last
    round again."""

    what: Literal["hello", "watch", "leave", "confirm"]


class LocalLeave:
    """The local peer's own leave. ``asked``: the event that has asked it to leave, while it waits
    for the end of its round; None: it does not.

    Methods take ``must_stay``: whether others may count on what this peer has sent for its present
    round, ``round_id``.
    """

    def __init__(self, settings: CoreSettings, timers: Timers[Any]) -> None:
        self.settings, self.timers = settings, timers
        self.asked: Stop | None = None
        self._round, self._until, self._urged = -1, 0.0, False

    def put_off(
        self, event: Stop, round_id: int, must_stay: bool, now: float
    ) -> list[Effect] | None:
        """Puts the leave off to the end of the round. None: the peer leaves now, because nobody
        counts on it, or because it is asked for the third time. A trainer that gets SIGTERM asks
        twice, and its end is the third time."""
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
        """When it was asked to leave. One drain timeout is for both: the end of its round, and the
        peers that are behind it."""
        return (
            now
            if self.asked is None
            else min(now, self._until - self.settings.rounds.drain_timeout_s)
        )

    def breaks_obligation(self, must_stay: bool) -> bool:
        """Whether it would leave in the middle of a round that others count on it for. Then its
        farewell must not say that it has not answered."""
        return self.asked is not None and must_stay

    def is_due(self, round_id: int, must_stay: bool, now: float) -> bool:
        """Whether it need wait no longer."""
        return not self.breaks_obligation(must_stay) or round_id > self._round or now >= self._until
