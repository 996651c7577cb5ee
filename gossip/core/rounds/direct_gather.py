"""A collective operation of gossip rounds: nothing is committed, so each peer sends its value to
all others, and waits for those who live.

A peer counts the values that it has given: those with the same number belong together. It waits
until everybody within reach has given as many, or the time is up. Where none has that number, as
after a new start of this peer, it gets the last value of each. What a value is for is known to the
trainers. Each peer decides by what it has received itself: a liar may have told each something
else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from gossip.core.events import Effect, Received, Send, Token
from gossip.core.frozen import record
from gossip.core.messages import Collected, GatherValue, PeerId
from gossip.core.settings import CoreSettings
from gossip.core.timers import Timers
from gossip.core.view import View

VALUES_KEPT = 32
"""Number of values kept of each peer, the last ones: as many as the operations of which a trainer
keeps the answers."""
WAIT = 0.7
"""Fraction of the round timeout to wait for the others, as in rounds with a server."""


@record
class GatherOverdue:
    """The others have had their time for the value of this number."""

    number: int


class DirectGather:
    """The values that one peer has given, and those of others. ``others``: who may take part; whom
    the view skips is not waited for, unless it skips all."""

    def __init__(
        self, local: PeerId, settings: CoreSettings, view: View, timers: Timers[Any]
    ) -> None:
        self.local, self.settings, self.view, self.timers = local, settings, view, timers
        self._given = 0  # how many values this peer has given
        self._own = b""
        self._values: dict[PeerId, OrderedDict[int, bytes]] = {}
        self._incarnations: dict[PeerId, int] = {}
        self._overdue: Token | None = None
        self._waits = False

    def broadcast_value(self, data: bytes, others: tuple[PeerId, ...], now: float) -> list[Effect]:
        """The trainer's value for its next operation; the same again where it has asked again."""
        if data != self._own:
            self._given, self._own = self._given + 1, data
        effects, self._waits = self.stop(), True
        timer = self.timers.set(
            now + WAIT * self.settings.rounds.round_timeout_s, GatherOverdue(self._given)
        )
        self._overdue = timer.token
        return [*effects, timer, *(Send(peer, self._value()) for peer in others)]

    def on_message(self, event: Received) -> list[Effect]:
        """Another's value. One that has begun anew is sent our last one."""
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
        """Whether the own value waits for nobody any more."""
        if not self._waits:
            return False
        within_reach = [peer for peer in others if not self.view.skip_reason(peer)]
        return all(self._number(peer) >= self._given for peer in within_reach or others)

    def _number(self, peer: PeerId) -> int:
        return max(self._values.get(peer, (0,)))

    def is_overdue(self, timer: GatherOverdue) -> bool:
        return self._waits and timer.number == self._given

    def stop(self) -> list[Effect]:
        """The trainer's value is not waited with any more: it takes over another state."""
        effects: list[Effect] = list(self.timers.cancel(self._overdue))
        self._overdue, self._waits = None, False
        return effects

    def close(self) -> tuple[list[Effect], tuple[Collected, ...]]:
        """Waits no more. Returns the own value, and of the others those with its number; where
        there are none, the last one of each."""
        values = {
            peer: kept[self._given] for peer, kept in self._values.items() if self._given in kept
        } or {peer: kept[max(kept)] for peer, kept in self._values.items()}
        values[self.local] = self._own
        return self.stop(), tuple([Collected(peer, data) for peer, data in sorted(values.items())])
