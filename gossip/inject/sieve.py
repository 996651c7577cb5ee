"""Transport with links that fail on command. It drops messages when they are sent. When messages
arrive, it drops, delays or rate-limits them.

It injects faults into real runs. A cut link loses messages without an error, like an unplugged
cable. With a real cut, ZeroMQ would miss heartbeats, so this transport reports the link down after
``link_timeout_s``, and up shortly after the cut ends. Messages in flight are lost, although TCP
might deliver them after a short cut.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from gossip.core import Arriving, LinkDown, LinkUp, Message, Payload, PeerId, Received
from gossip.transport import TOLD_EVERY_S, Arrival, Transport, WrappedTransport

RECONNECT_S = 0.1  # ZeroMQ retries after 0.05 s, then at growing intervals of up to a second
TRICKLE_STEP_S = 0.02
HELD_MAX = 4096  # maximum number of delayed messages; further messages are lost


@dataclass(frozen=True, slots=True)
class LinkCondition:
    """Faults of the link to one peer. ``loss`` (fraction of messages lost), ``delay_s`` (upper
    bound of a uniform delay) and ``bytes_per_s`` (bandwidth for payloads) apply to messages from
    the peer."""

    mute: bool = False  # messages to the peer are lost
    deaf: bool = False  # messages from the peer are lost
    loss: float = 0.0
    delay_s: float = 0.0
    bytes_per_s: float = inf


class _Trickle:
    """Queue of payloads from one peer, which arrive at a limited rate."""

    def __init__(self, now: float) -> None:
        self.waiting: deque[Received] = deque()
        # Start of the first payload in the queue, and time of the next report of its progress.
        self._begun_at = self._tell_at = now

    def put(self, received: Received, now: float) -> None:
        if not self.waiting:
            self._begun_at, self._tell_at = now, now + TOLD_EVERY_S
        self.waiting.append(received)

    def due(self, bytes_per_s: float) -> float:
        """Return the time at which the first payload in the queue has arrived completely."""
        return self._begun_at + _nbytes(self.waiting[0]) / bytes_per_s

    def come(self, bytes_per_s: float, now: float) -> list[Arrival]:
        """Return the payloads that have arrived completely by ``now``. If a report is due, add the
        progress of the next payload."""
        arrivals: list[Arrival] = []
        while self.waiting and (due := self.due(bytes_per_s)) <= now:
            self._begun_at = due
            arrivals.append(self.waiting.popleft())
        if self.waiting and now >= self._tell_at:
            self._tell_at, first = now + TOLD_EVERY_S, self.waiting[0]
            here = int(bytes_per_s * (now - self._begun_at))
            arrivals.append(
                Arriving(first.sender, first.incarnation, first.message, here, _nbytes(first))
            )
        return arrivals


def _nbytes(received: Received) -> int:
    return 0 if received.payload is None else received.payload.nbytes


class FaultyTransport(WrappedTransport):
    """Wrapper of another transport. ``fail`` sets the faults; initially no link has a fault."""

    def __init__(
        self, inner: Transport, seed: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(inner)
        self._random, self._clock = Random(seed), clock
        self._faults: dict[PeerId, LinkCondition] = {}
        self._stands: set[PeerId] = set()  # links that are up in the inner transport
        self._reported_up: set[PeerId] = set()  # links reported up
        # peer -> time of the last cut or repair of its link that is not reported yet
        self._changed: dict[PeerId, float] = {}
        self._held: deque[tuple[float, Received]] = deque()
        self._trickles: dict[PeerId, _Trickle] = {}

    def fail(self, faults: Mapping[PeerId, LinkCondition]) -> None:
        """Set the faults of all links from now on. A link that is not in ``faults`` has none."""
        now = self._clock()
        for peer in {*faults, *self._faults}:
            if (
                faults.get(peer, LinkCondition()).deaf
                != self._faults.get(peer, LinkCondition()).deaf
            ):
                self._changed[peer] = now
        self._faults = dict(faults)

    def disconnect(self, peer: PeerId) -> None:
        super().disconnect(peer)
        self._stands.discard(peer)
        self._reported_up.discard(peer)

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        fault = self._faults.get(peer)
        if fault is not None and fault.mute:
            self.traffic.drop("cut")
            return True  # no error for a message to a cut link
        return super().send(peer, message, payload)

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        if self._held:
            timeout_s = max(0.0, min(timeout_s, self._held[0][0] - self._clock()))
        if self._trickles:
            timeout_s = min(timeout_s, TRICKLE_STEP_S, self._next_trickle_s(self._clock()))
        come = super().poll(timeout_s, wake, awake_s)
        now = self._clock()
        arrivals: list[Arrival] = self._news(now) if self._changed else []
        for arrival in come:
            if isinstance(arrival, Received):
                disturbed = self._faults or self._held or self._trickles
                arrivals += self._let_through(arrival, now) if disturbed else (arrival,)
            elif isinstance(arrival, Arriving):
                arrivals += (
                    ()
                    if self._is_deaf(arrival.sender) or self._trickles_from(arrival.sender)
                    else (arrival,)
                )
            else:
                arrivals += self._link(arrival)
        while self._held and self._held[0][0] <= now:
            arrivals += self._limit_rate(self._held.popleft()[1], now)
        for peer, trickle in list(self._trickles.items()):
            arrivals += trickle.come(self._faults.get(peer, LinkCondition()).bytes_per_s, now)
            if not trickle.waiting:
                del self._trickles[peer]
        return arrivals

    def _trickles_from(self, peer: PeerId) -> bool:
        return peer in self._trickles or self._faults.get(peer, LinkCondition()).bytes_per_s < inf

    def _next_trickle_s(self, now: float) -> float:
        """Return the seconds until the next rate-limited payload has arrived completely."""
        dues = [
            trickle.due(self._faults.get(peer, LinkCondition()).bytes_per_s)
            for peer, trickle in self._trickles.items()
        ]
        return max(0.0, min(dues) - now)

    def _let_through(self, received: Received, now: float) -> tuple[Received, ...]:
        fault = self._faults.get(received.sender, LinkCondition())
        if fault.deaf or (fault.loss and self._random.random() < fault.loss):
            self.traffic.drop("cut" if fault.deaf else "lost")
            return ()
        if not fault.delay_s and not any(held.sender == received.sender for _, held in self._held):
            return self._limit_rate(received, now)
        if len(self._held) >= HELD_MAX:
            self.traffic.drop("lost")
            return ()
        # All delayed messages are in one queue, and each waits for the messages before it. So a
        # delay can be longer than its random value.
        due = now + self._random.uniform(0.0, fault.delay_s)
        self._held.append((max(due, self._held[-1][0]) if self._held else due, received))
        return ()

    def _limit_rate(self, received: Received, now: float) -> tuple[Received, ...]:
        """Return the message at once, or queue it if it has a payload that arrives at a limited
        rate."""
        if received.payload is None or not self._trickles_from(received.sender):
            return (received,)
        trickle = self._trickles.setdefault(received.sender, _Trickle(now))
        if len(trickle.waiting) < HELD_MAX:
            trickle.put(received, now)
        else:
            self.traffic.drop("lost")
        return ()

    def _link(self, arrival: LinkUp | LinkDown) -> tuple[Arrival, ...]:
        """Return the link event of the inner transport; () if a cut of the link hides it."""
        peer = arrival.peer
        if isinstance(arrival, LinkUp):
            self._stands.add(peer)
            if self._is_deaf(peer) or peer in self._changed:
                return ()
            self._reported_up.add(peer)
            return (arrival,)
        self._stands.discard(peer)
        if peer not in self._reported_up or self._is_deaf(peer):
            return ()
        self._reported_up.discard(peer)
        return (arrival,)

    def _news(self, now: float) -> list[Arrival]:
        """Return the link events that missed heartbeats and reconnections would have caused by
        ``now``, if the cuts were real."""
        news: list[Arrival] = []
        for peer, since in list(self._changed.items()):
            deaf = self._is_deaf(peer)
            if now - since < (self.link_timeout_s if deaf else RECONNECT_S):
                continue
            del self._changed[peer]
            if deaf and peer in self._reported_up:
                self._reported_up.discard(peer)
                news.append(LinkDown(peer, "nothing comes over the control connection"))
            elif not deaf and peer in self._stands and peer not in self._reported_up:
                self._reported_up.add(peer)
                news.append(LinkUp(peer))
            elif not deaf and peer in self._reported_up and peer not in self._stands:
                self._reported_up.discard(peer)
                news.append(LinkDown(peer, "control connection closed"))
        return news

    def _is_deaf(self, peer: PeerId) -> bool:
        fault = self._faults.get(peer)
        return fault is not None and fault.deaf
