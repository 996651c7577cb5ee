"""A transport within one process, for tests and for peers that are threads.
It encodes and decodes every message.

All peers share a ``Hub``. Each transport is driven by a thread of its own;
a lock guards what they share.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from gossip.core import (
    BULK_MESSAGES,
    Envelope,
    LinkDown,
    LinkUp,
    Message,
    Payload,
    PeerId,
    Received,
)
from gossip.errors import AddressInUse
from gossip.vectors import to_bytes

from .assembly import HeaderFilter, IncomingPayload
from .base import LINK_TIMEOUT_S, Arrival, PayloadLimit, ResultRoom, Traffic
from .chunks import checksum
from .codec import encode

CONTROL_QUEUE = 256  # messages of one sender that wait
BULK_QUEUE = 64
BULK_QUEUE_BYTES = 256 * 2**20  # two messages always fit


@dataclass(frozen=True, slots=True, eq=False)
class Packet:
    """Entry of an inbox: a header, and for a payload its bytes, its announced size and its
    checksum."""

    connection: object
    header: bytes
    nbytes: int | None = None
    sum_of_payload: int = 0
    content: bytes = b""


class _Inbox:
    """Inbox of one transport, for parcels and news of other peers. Guarded by the hub's lock."""

    def __init__(self) -> None:
        self.control: deque[Packet] = deque()
        self.bulk: deque[Packet] = deque()
        self.news: deque[LinkUp | LinkDown] = deque()
        # parcels and bytes, by connection and lane
        self.waiting: dict[tuple[object, bool], tuple[int, int]] = {}
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, parcel: Packet, bulk: bool) -> bool:
        key = (parcel.connection, bulk)
        waiting, nbytes = self.waiting.get(key, (0, 0))
        nbytes += len(parcel.content)
        if waiting >= (BULK_QUEUE if bulk else CONTROL_QUEUE) or (
            waiting >= 2 and nbytes > BULK_QUEUE_BYTES
        ):
            return False
        self.waiting[key] = (waiting + 1, nbytes)
        (self.bulk if bulk else self.control).append(parcel)
        self.ring()
        return True

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def forget(self, connection: object) -> None:
        for queue in (self.control, self.bulk):
            kept = [parcel for parcel in queue if parcel.connection is not connection]
            queue.clear()
            queue.extend(kept)
        self.waiting.pop((connection, False), None)
        self.waiting.pop((connection, True), None)

    def drain(self) -> tuple[list[Packet], list[Packet], list[LinkUp | LinkDown]]:
        taken = list(self.control), list(self.bulk), list(self.news)
        self.control.clear()
        self.bulk.clear()
        self.news.clear()
        self.waiting.clear()
        return taken


class Hub:
    """The network that in-memory transports share.

    Attributes:
        lock: Guards the others, and the inbox of every transport.
        bound: Address -> the transport that listens there.
        numbers: Of the addresses that are given out.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.bound: dict[tuple[str, str], MemoryTransport] = {}
        self.numbers = count(1)

    def inject(self, control: str, bulk: str, parcel: Packet, *, on_bulk: bool) -> bool:
        """Puts anything into an inbox, as a stranger would.
        For tests of what a transport does with it."""
        with self.lock:
            target = self.bound.get((control, bulk))
            return target is not None and target.inbox.put(parcel, on_bulk)


class MemoryTransport:
    """Same promises as ``ZeroMQTransport``. Payloads are copied when they are sent,
    so nothing is ever in flight."""

    def __init__(
        self,
        hub: Hub,
        run: bytes,
        local: PeerId,
        incarnation: Callable[[], int] | int,
        payload_limit: PayloadLimit,
        control: str | None = None,
        bulk: str | None = None,
    ) -> None:
        """Without addresses, free ones are chosen. Raises AddressInUse."""
        self.traffic = Traffic()
        self.link_timeout_s = LINK_TIMEOUT_S
        self.local = local
        self._hub, self._run = hub, run
        self._incarnation = incarnation if callable(incarnation) else lambda: incarnation
        self._gate = HeaderFilter(run, local, payload_limit, self.traffic)
        self._links: dict[PeerId, tuple[tuple[str, str], object]] = {}
        self._closed = self.woken = False
        with hub.lock:
            number = next(hub.numbers)
            self.control = control or f"memory://{number}/control"
            self.bulk = bulk or f"memory://{number}/bulk"
            if self._address in hub.bound:
                raise AddressInUse(self.control, f"peer {hub.bound[self._address].local}")
            self.inbox = _Inbox()
            hub.bound[self._address] = self
            for other in hub.bound.values():
                other.announce(self._address, None)

    @property
    def _address(self) -> tuple[str, str]:
        return self.control, self.bulk

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        with self._hub.lock:
            known = self._links.get(peer)
            if known is not None and known[0] == (control, bulk):
                return
            self.disconnect(peer)
            if not (control.startswith("memory://") and bulk.startswith("memory://")):
                self.traffic.drop("bad_address")
                return
            self._links[peer] = ((control, bulk), object())
            if (control, bulk) in self._hub.bound:
                self.announce((control, bulk), None, only=peer)

    def disconnect(self, peer: PeerId) -> None:
        with self._hub.lock:
            address, connection = self._links.pop(peer, (None, None))
            if address is not None:
                if address in self._hub.bound:
                    self._hub.bound[address].inbox.forget(connection)
                kept = [news for news in self.inbox.news if news.peer != peer]
                self.inbox.news.clear()
                self.inbox.news.extend(kept)

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        header = encode(Envelope(self._run, self.local, self._incarnation(), message))
        on_bulk = isinstance(message, BULK_MESSAGES)
        with self._hub.lock:
            link = self._links.get(peer)
            target = None if link is None else self._hub.bound.get(link[0])
            if link is None or target is None:
                self.traffic.drop("no_link")
                return False
            parcel = Packet(link[1], header)
            if payload is not None:
                content = to_bytes(payload.data)
                parcel = Packet(link[1], header, len(content), checksum(content), content.tobytes())
            if not target.inbox.put(parcel, on_bulk):
                self.traffic.drop("full")
                return False
        self.traffic.sent_messages += 1
        self.traffic.sent_bytes += len(header) + len(parcel.content)
        return True

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        for fd in (self.inbox.bell, *wake):
            poller.register(fd, select.POLLIN)
        while True:
            ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
            self.woken = any(fd != self.inbox.bell for fd, _ in ready)
            arrivals = self._receive() if any(fd == self.inbox.bell for fd, _ in ready) else []
            if arrivals or self.woken or time.monotonic() >= deadline:
                return arrivals

    def share(
        self, fd: int, memory: NDArray[np.uint8], room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        return  # payloads are copied when they are sent

    def in_flight(self, data: object) -> bool:
        return False

    def close(self, linger_s: float = 0.0) -> None:
        with self._hub.lock:
            if self._closed:
                return
            self._closed = True
            del self._hub.bound[self._address]
            for other in self._hub.bound.values():
                other.announce(self._address, "closed")
            os.close(self.inbox.bell)

    def announce(
        self, address: tuple[str, str], down: str | None, only: PeerId | None = None
    ) -> None:
        """Tells this transport that an address came up, or why it went down."""
        for peer, (there, _) in self._links.items():
            if there == address and only in (None, peer):
                self.inbox.news.append(LinkUp(peer) if down is None else LinkDown(peer, down))
                self.inbox.ring()

    def _receive(self) -> list[Arrival]:
        with self._hub.lock:
            os.eventfd_read(self.inbox.bell)
            control, bulk, news = self.inbox.drain()
        arrivals: list[Arrival] = []
        for parcel in control:
            self._count(parcel)
            envelope = self._gate.control(parcel.header)
            if envelope is not None:
                arrivals.append(Received(envelope.sender, envelope.incarnation, envelope.message))
        arrivals += news
        for parcel in bulk:
            self._count(parcel)
            envelope = self._gate.bulk(parcel.header, parcel.nbytes)
            if envelope is None:
                continue
            received = self._whole(envelope, parcel)
            if received is None:
                self.traffic.drop("corrupt")
            else:
                arrivals.append(received)
        return arrivals

    def _whole(self, envelope: Envelope, parcel: Packet) -> Received | None:
        if parcel.nbytes is None:
            return Received(envelope.sender, envelope.incarnation, envelope.message)
        if len(parcel.content) != parcel.nbytes:
            return None
        incoming = IncomingPayload(envelope, parcel.nbytes, parcel.sum_of_payload)
        content = memoryview(parcel.content)
        while True:
            incoming.room()[:] = content[incoming.filled : incoming.filled + incoming.chunk_bytes]
            if incoming.grow():
                return incoming.finish()

    def _count(self, parcel: Packet) -> None:
        self.traffic.received_messages += 1
        self.traffic.received_bytes += len(parcel.header) + len(parcel.content)
