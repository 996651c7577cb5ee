"""The way out to one peer: a lane for control and one for bulk, and the bulk messages that wait."""

from __future__ import annotations

import struct
import weakref
from collections import deque
from typing import Any, Protocol, cast

import numpy as np
import zmq
from numpy.typing import NDArray

from gossip.core.messages import PeerId

from .chunks import CHUNK_BYTES, Outgoing, bytes_of, new_transfer
from .sockets import allow_ipv6, new_socket
from .unix import UnixLane, name_of

QUEUE_PAYLOADS = 64  # bulk messages that wait for one peer
QUEUE_BYTES = 256 * 2**20  # and their memory, which is only referred to; two messages always fit
ZERO_COPY_BYTES = 512 * 1024
"""Below it a copy is cheaper than the bookkeeping of libzmq's and pyzmq's: 23 us against 34 at 256 KiB."""
MONITORED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED

_DONTWAIT = int(zmq.DONTWAIT)
_DONTWAIT_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLOUT = int(zmq.POLLOUT)
_MONITOR_EVENT = struct.Struct("=Hi")


class ZmqLane:
    """A DEALER to one peer, with its monitor."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, *, bulk: bool) -> None:
        self.chunk_bytes, self.summed, self.up = CHUNK_BYTES, True, False
        self.socket = new_socket(context, zmq.DEALER, bulk=bulk)
        self.room_fd: int = self.socket.FD
        self._monitor = self.socket.get_monitor_socket(MONITORED)
        self.news_fd: int = self._monitor.FD
        # A pipe that nobody has looked into counts as being read, and its descriptor stays silent: so look, while it is empty.
        self._monitor.get(zmq.EVENTS)
        allow_ipv6(self.socket, address)
        self.socket.connect(address)

    def news(self) -> list[bool]:
        news: list[bool] = []
        while True:
            try:
                frames = self._monitor.recv_multipart(_DONTWAIT)
            except zmq.Again:
                return news
            event, _ = _MONITOR_EVENT.unpack(frames[0])
            self.up = bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            news.append(self.up)

    def retry(self) -> bool:
        return True  # ZeroMQ does so by itself

    def refers_to(self, nbytes: int) -> bool:
        return nbytes >= ZERO_COPY_BYTES

    def push_ahead(self, transfer: int, holder: NDArray[np.uint8]) -> bool:
        return False

    def push(self, outgoing: Outgoing) -> bool:
        header, chunk = outgoing.frames()
        while True:
            try:
                if chunk is None:
                    self.socket.send(header, _DONTWAIT)
                else:
                    self.socket.send(header, _DONTWAIT_MORE)
                    self.socket.send(chunk, _DONTWAIT, copy=not self.refers_to(outgoing.nbytes))
            except zmq.Again:
                # A non-blocking send may say so although room was made since: asking for the events looks again.
                if cast(int, self.socket.get(_EVENTS)) & _POLLOUT:
                    continue
                return False
            return True

    def close(self, linger_ms: int) -> None:
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=linger_ms)


class BulkLane(Protocol):
    """What carries payloads to one peer."""

    chunk_bytes: int
    summed: bool
    """Whether payloads need a checksum: the lane may send their memory when ``push`` has long returned."""
    up: bool
    """Whether the connection stands, as far as ``news`` has told."""
    news_fd: int
    """Readable when there are ``news``."""
    room_fd: int
    """Readable when there may be room again."""

    def news(self) -> list[bool]:
        """Each time that the connection was made (True) or broke (False) since the last call."""
        ...

    def retry(self) -> bool:
        """Tries once more to connect. Whether that need not be called again until the next bad news."""
        ...

    def refers_to(self, nbytes: int) -> bool:
        """Whether a payload of that size is read from where it lies after ``push`` has returned."""
        ...

    def push(self, outgoing: Outgoing) -> bool:
        """Takes the next chunk, without advancing. False: no room, or no connection."""
        ...

    def push_ahead(self, transfer: int, holder: NDArray[np.uint8]) -> bool:
        """Sends a payload whose message comes later. False: not on this lane, not of that size, or not now."""
        ...

    def close(self, linger_ms: int) -> None: ...


class Link:
    """Both lanes to one peer, and the bulk messages that wait until the bulk lane takes them."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], peer: PeerId, control: str, bulk: str) -> None:
        self.peer, self.addresses = peer, (control, bulk)
        self.control = ZmqLane(context, control, bulk=False)
        self.bulk: BulkLane = UnixLane(bulk) if name_of(bulk) else ZmqLane(context, bulk, bulk=True)
        self.up = False  # both lanes stand, and it was told
        self.watched = False  # somebody waits for the bulk lane to take more
        self.queue: deque[Outgoing] = deque()
        self._queued_bytes = 0
        self._ahead: tuple[Any, int] | None = None  # what went before its message, and under which number

    @property
    def lanes(self) -> tuple[ZmqLane, BulkLane]:
        return self.control, self.bulk

    def has_room(self, nbytes: int) -> bool:
        waiting = len(self.queue)
        return waiting < 2 or (waiting < QUEUE_PAYLOADS and self._queued_bytes + nbytes <= QUEUE_BYTES)

    def enqueue(self, outgoing: Outgoing) -> None:
        self.queue.append(outgoing)
        self._queued_bytes += outgoing.nbytes

    def dequeue(self) -> None:
        self._queued_bytes -= self.queue.popleft().nbytes

    def forget(self) -> None:
        """What waits is worth nothing on the next connection: its beginning went over this one."""
        self.queue.clear()
        self._queued_bytes = 0
        self._ahead = None

    def send_ahead(self, data: Any, holder: NDArray[np.uint8]) -> bool:
        """Sends a payload whose message comes later, unless others wait. Whether it went."""
        transfer = new_transfer()
        went = self.up and not self.queue and self.bulk.push_ahead(transfer, holder)
        self._ahead = (data, transfer) if went else None
        return went

    def went_ahead(self, data: Any) -> int | None:
        """The number under which just this went ahead, once; None: it did not."""
        if self._ahead is None or self._ahead[0] is not data:
            return None
        transfer, self._ahead = self._ahead[1], None
        return transfer


class Flights:
    """Which memory is still being sent.

    Every chunk in ZeroMQ's hands, and every message that waits, refers to a ``holder``: an array object over the payload's
    memory that nobody else keeps. It is gone when they are. One weak reference to it tells what a MessageTracker for each
    chunk would, for 10 us less a chunk.
    """

    def __init__(self) -> None:
        self._flights: list[tuple[int, int, weakref.ref[NDArray[np.uint8]]]] = []

    def add(self, holder: NDArray[np.uint8]) -> None:
        if len(self._flights) >= 64:
            self._drop_landed()
        self._flights.append((*_span(holder), weakref.ref(holder)))

    def touch(self, data: Any) -> bool:
        """Whether any of them reads from this array's memory, whatever array it was sent as."""
        self._drop_landed()
        if not self._flights:
            return False
        start, stop = _span(bytes_of(data))
        return any(first < stop and start < last for first, last, _ in self._flights)

    def _drop_landed(self) -> None:
        self._flights = [flight for flight in self._flights if flight[2]() is not None]


def _span(memory: NDArray[np.uint8]) -> tuple[int, int]:
    start: int = memory.__array_interface__["data"][0]
    return start, start + len(memory)
