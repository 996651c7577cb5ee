"""One membership on a bench: its timers fire when the bench's clock says so,
and what it sends is kept."""

from __future__ import annotations

import random
from typing import Any

from gossip.core.events import CancelTimer, Connect, Disconnect, Effect, Send, SetTimer
from gossip.core.membership.swim import Membership
from gossip.core.membership.table import Member, first_standing
from gossip.core.messages import Ack, Gossip, Message, Ping, PingRequest, Progress, Rumor
from gossip.core.settings import MembershipSettings
from gossip.core.timers import Timers


def rumor(
    peer: int, status: str, standing: int = 0, origin: int | None = None, control: str = ""
) -> Rumor:
    return Rumor(peer, status, standing, control, control, peer if origin is None else origin)  # type: ignore[arg-type]


class MemberBench:
    """Peer 0 of n. The others are linked and have spoken,
    and answer pings unless they are ``mute``."""

    def __init__(self, n: int = 5, *, meet: bool = True, **settings: Any) -> None:
        self.n, self.now, self.count = n, 0.0, 0
        self.timers: Timers[Any] = Timers()
        self.settings = MembershipSettings(**settings)
        self.core = Membership(
            Member.own(0, 0, "c0", "b0"),
            self.settings,
            self.timers,
            random.Random(1),
            frozenset(range(n)),
        )
        self.due: dict[int, float] = {}
        self.acks: dict[int, tuple[int, Ack]] = {}  # on their way, under negative tokens
        self.sent: list[Send] = []
        self.connects: list[Connect] = []
        self.disconnects: list[Disconnect] = []
        self.mute: set[int] = set()
        self.do(self.core.start(0.0))
        for peer in range(1, n):
            self.do(self.core.learn(peer, f"c{peer}", f"b{peer}", 0, self.now))
            if meet:
                self.link(peer)
                self.say(peer, Gossip(()))
        if meet:
            self.advance(0.01)  # the probes of the new links are answered
        self.core.drain()
        self.sent.clear()

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SetTimer(token, at):
                    assert token not in self.due
                    self.due[token] = at
                case CancelTimer(token):
                    del self.due[token]
                case Send():
                    self.sent.append(effect)
                    self._answer(effect)
                case Connect():
                    self.connects.append(effect)
                case Disconnect():
                    self.disconnects.append(effect)
                case _:
                    raise AssertionError(effect)

    def _answer(self, send: Send) -> None:
        message = send.message
        if (
            isinstance(message, Ping)
            and send.peer not in self.mute
            and self.core.members[send.peer].linked
        ):
            self.count += 1
            self.due[-self.count] = self.now + 0.001
            self.acks[-self.count] = (send.peer, Ack(message.nonce, send.peer, Progress(1, 0), ()))

    def advance(self, duration_s: float) -> None:
        end = self.now + duration_s
        while self.due and min(self.due.values()) <= end:
            token = min(self.due, key=lambda token: (self.due[token], token))
            self.now = max(self.now, self.due.pop(token))
            if token < 0:
                peer, ack = self.acks.pop(token)
                self.say(peer, ack)
            else:
                what = self.timers.fire(token)
                assert what is not None, "a timer fired that had been cancelled"
                self.do(self.core.on_timer(what, self.now))
        self.now = end

    def say(self, sender: int, message: Message, incarnation: int = 0) -> None:
        if self.core.accept_sender(sender, incarnation, self.now):
            self.do(self.core.on_message(sender, incarnation, message, self.now))  # type: ignore[arg-type]

    def gossip(self, sender: int, *rumors: Rumor) -> None:
        self.say(sender, Gossip(rumors))

    def speak_again(self, peer: int) -> None:
        """First words of its next life, which do not say where it is."""
        self.say(peer, Gossip(()), incarnation=self.core.members[peer].incarnation + 1)

    def link(self, peer: int, up: bool = True, reason: str = "") -> None:
        self.do(self.core.on_link(peer, up, reason, self.now))

    def changes(self) -> list[tuple[int, str]]:
        return [(change.peer, change.what) for change in self.core.drain()]

    def status(self, peer: int) -> str:
        return self.core.members[peer].status

    def sent_to(self, peer: int, kind: type | None = None) -> list[Message]:
        return [
            s.message
            for s in self.sent
            if s.peer == peer and (kind is None or isinstance(s.message, kind))
        ]

    def requests(self) -> list[tuple[int, PingRequest]]:
        return [(s.peer, s.message) for s in self.sent if isinstance(s.message, PingRequest)]

    def own_rumours(self) -> list[Rumor]:
        return [
            r
            for s in self.sent
            if isinstance(s.message, Gossip)
            for r in s.message.rumors
            if r.peer == 0
        ]


NEXT_LIFE = first_standing(1)
