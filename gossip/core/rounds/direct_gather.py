"""Collective operation of gossip rounds. These rounds have no commit, so each peer broadcasts its
value and waits for the values of the reachable peers.

Each peer numbers its values, and values with the same number belong to the same operation. A peer
waits until every reachable peer has sent as many values as itself, or until the timeout. After a
restart, the numbers of a peer begin again. If no value of another peer has the number of its own
value, the peer uses the last value of each peer. Only the trainers interpret the values. A
Byzantine peer may send different values to different peers, and each peer uses the value that it
received.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from gossip.core.events import Effect, Received, Send, Token
from gossip.core.frozen import record
from gossip.core.messages import Collected, GatherValue, PeerId
from gossip.core.settings import CLOSE_SHARE, VALUES_KEPT, CoreSettings
from gossip.core.timers import Timers
from gossip.core.view import MembersView


@record
class GatherOverdue:
    """Timeout of the wait for the values of operation ``number``."""

    number: int


@dataclass(eq=False)
class DirectGather:
    """Values of the local peer and of other peers.

    Methods take ``others``: the other peers that may take part. The local peer waits for the peers
    among ``others`` that are not skipped. If all are skipped, it waits for all.
    """

    local: PeerId
    settings: CoreSettings
    view: MembersView
    timers: Timers[Any]

    def __post_init__(self) -> None:
        self._given = 0  # number of values that this peer has sent
        self._own = b""
        self._values: dict[PeerId, OrderedDict[int, bytes]] = {}
        self._incarnations: dict[PeerId, int] = {}
        self._overdue: Token | None = None
        self._waits = False

    def broadcast_value(self, data: bytes, others: tuple[PeerId, ...], now: float) -> list[Effect]:
        """Broadcast the trainer's value for its next operation. If the value equals the last value,
        the trainer has repeated its request, so the number stays the same."""
        if data != self._own:
            self._given, self._own = self._given + 1, data
        effects, self._waits = self.stop(), True
        timer = self.timers.set(
            now + CLOSE_SHARE * self.settings.rounds.round_timeout_s, GatherOverdue(self._given)
        )
        self._overdue = timer.token
        return [*effects, timer, *(Send(peer, self._value()) for peer in others)]

    def on_message(self, event: Received) -> list[Effect]:
        """Record the value of another peer. If this is the first value of an incarnation of the
        sender, reply with the last local value."""
        value, sender = event.message, event.sender
        assert isinstance(value, GatherValue)
        if (
            value.lineage != self.settings.lineage
            or not self.settings.may_be(sender)
            or sender == self.local
        ):
            return []
        life = self._incarnations.get(sender, event.incarnation)
        begins = sender not in self._incarnations or event.incarnation > life
        self._incarnations[sender] = event.incarnation
        if event.incarnation > life:
            self._values.pop(sender, None)
        kept = self._values.setdefault(sender, OrderedDict())
        kept[value.number] = value.data
        while len(kept) > VALUES_KEPT:
            del kept[min(kept)]
        return [Send(sender, self._value())] if begins and self._given > value.number else []

    def _value(self) -> GatherValue:
        return GatherValue(self.settings.lineage, self._given, self._own)

    def is_over(self, others: tuple[PeerId, ...]) -> bool:
        """Whether the local peer no longer waits for the value of any peer."""
        if not self._waits:
            return False
        within_reach = [peer for peer in others if not self.view.skip_reason(peer)]
        return all(self._number(peer) >= self._given for peer in within_reach or others)

    def _number(self, peer: PeerId) -> int:
        return max(self._values.get(peer, (0,)))

    def is_overdue(self, timer: GatherOverdue) -> bool:
        return self._waits and timer.number == self._given

    def stop(self) -> list[Effect]:
        """End the wait for the values of other peers."""
        effects: list[Effect] = list(self.timers.cancel(self._overdue))
        self._overdue, self._waits = None, False
        return effects

    def close(self) -> tuple[list[Effect], tuple[Collected, ...]]:
        """End the wait. Return the local value, and the values of other peers with the same number.
        If no other peer has sent a value with this number, return the last value of each peer
        instead."""
        values = {
            peer: kept[self._given] for peer, kept in self._values.items() if self._given in kept
        } or {peer: kept[max(kept)] for peer, kept in self._values.items()}
        values[self.local] = self._own
        return self.stop(), tuple([Collected(peer, data) for peer, data in sorted(values.items())])
