"""A core for tests of the driver: connects to everybody, pings everybody every 10 ms,
and remembers what happened."""

from __future__ import annotations

from typing import Any

from gossip.core import events
from gossip.core.events import Effect, Event
from gossip.core.messages import Message, PeerId, Ping
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.network import Network


class Echo:
    """``extra`` are effects for its next event, ``limit`` the size that a payload must have,
    ``pinging`` whether it goes on."""

    def __init__(self, peer: PeerId, incarnation: int, n: int) -> None:
        self.peer, self.incarnation, self.n = peer, incarnation, n
        self.seen: list[tuple[float, Event]] = []
        self.sent_at: dict[int, float] = {}
        self.token = 0
        self.extra: list[Effect] = []
        self.limit: int | None = None
        self.pinging = True

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.seen.append((now, event))
        extra, self.extra = self.extra, []
        others = [peer for peer in range(self.n) if peer != self.peer]
        match event:
            case events.Started():
                return [*[events.Connect(peer, *address(peer)) for peer in others], *self.tick(now)]
            case events.TimerFired(token) if token == self.token and self.pinging:
                self.sent_at[token] = now
                return [
                    *extra,
                    *[events.Send(peer, Ping(token, peer, ())) for peer in others],
                    *self.tick(now),
                ]
            case _:
                return extra

    def admit(self, sender: PeerId, message: Message) -> events.Admission:
        return events.Admission(10_000 if self.limit is None else self.limit)

    def tick(self, now: float) -> list[Effect]:
        self.token += 1
        return [events.SetTimer(self.token, now + 0.01)]

    def of(self, kind: type, since: float = 0.0) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.seen if isinstance(event, kind) and at >= since]

    def received(self, sender: PeerId | None = None, since: float = 0.0) -> list[tuple[float, Any]]:
        found = self.of(events.Received, since)
        return [(at, event) for at, event in found if sender in (None, event.sender)]


def echo_swarm(
    n: int, seed: int = 1, network: Network | None = None, **options: Any
) -> Swarm[Echo]:
    return Swarm(lambda peer, life: Echo(peer, life, n), n, seed, network, **options)
