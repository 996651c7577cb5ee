"""Leaving and ending, one peer at a time: who takes part no more by its own word,
and from which round on.

Who is asked to stop has said nothing about the round it is in, or is counted on in it. In the first
case it goes at once, in the other when that round is over: so it can say that no round from such a
one on has its answer, anywhere. Therefore nobody needs to be a majority of it as well: the others
of the roster go on though most of it leave in one moment,
and still no two sides of a partition both can.
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
    """What the others have said. ``kept``: rounds whose commits a peer hands to those behind it."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.done: dict[PeerId, int] = {}
        """Who has said that it goes on no more, and in which round."""
        self._left: dict[PeerId, int] = {}

    def __len__(self) -> int:
        return len(self.done)

    def hear(self, peer: PeerId, hello: Hello) -> None:
        """It goes on no more: it has completed the training, or it leaves before that."""
        self.done[peer] = hello.round_id
        if hello.stage == "leaving":
            self._left[peer] = hello.round_id

    def is_back(self, peer: PeerId) -> None:
        self.done.pop(peer, None)
        self._left.pop(peer, None)

    def is_done(self, peer: PeerId, round_id: int) -> bool:
        """Whether nothing of it is to come in this round. One that ended a little later has its
        result to hand out."""
        return not 0 < self.done.get(peer, round_id + 1) - round_id <= self.kept

    def said_so(self, peer: PeerId) -> bool:
        """Whether it has said itself that it goes on no more."""
        return peer in self.done

    def leaves(self, peer: PeerId) -> bool:
        return peer in self._left

    def absent(self, roster: Collection[PeerId], round_id: int) -> int:
        """How many of the roster have left before they answered in this round."""
        return (
            sum([self._left.get(peer, round_id + 1) <= round_id for peer in roster])
            if self._left
            else 0
        )


@record
class PeerTimer:
    """``hello``: say hello again; ``watch``: is there a quorum; ``leave``: however things stand;
    ``confirm``: ask again."""

    what: Literal["hello", "watch", "leave", "confirm"]


class LocalLeave:
    """The local peer's own leave. ``asked``: it has been asked to,
    and waits for the end of its round.

    ``must_stay``, where it is asked for: whether others may count on what this peer has said in the
    present round, ``round_id``.
    """

    def __init__(self, settings: CoreSettings, timers: Timers[Any]) -> None:
        self.settings, self.timers = settings, timers
        self.asked: Stop | None = None
        self._round, self._until, self._urged = -1, 0.0, False

    def put_off(
        self, event: Stop, round_id: int, must_stay: bool, now: float
    ) -> list[Effect] | None:
        """None: it goes now, for nobody counts on it, or because it is asked again and again: a
        trainer that was sent SIGTERM asks twice, and a third time when it is gone."""
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
        """When it was asked: it has the time of one drain for both, for the end of its round and
        for those behind it."""
        return (
            now
            if self.asked is None
            else min(now, self._until - self.settings.rounds.drain_timeout_s)
        )

    def breaks_obligation(self, must_stay: bool) -> bool:
        """Whether it goes although it was asked to stay for the end of its round: nobody may be
        told that it has not answered."""
        return self.asked is not None and must_stay

    def is_due(self, round_id: int, must_stay: bool, now: float) -> bool:
        """Whether that time is over."""
        return not self.breaks_obligation(must_stay) or round_id > self._round or now >= self._until
