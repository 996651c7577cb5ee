"""The way out to one peer over ZeroMQ: two DEALERs, a monitor on each, and the bulk messages that wait."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from gossip.core.messages import PeerId

from .chunks import Outgoing, bytes_of
from .sockets import allow_ipv6, new_socket

QUEUE_PAYLOADS = 64  # bulk messages that wait for one peer
QUEUE_BYTES = 256 * 2**20  # and their memory, which is only referred to; two messages always fit
MONITORED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Lane:
    """A DEALER to one peer, with its monitor."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, *, bulk: bool) -> None:
        self.bulk = bulk
        self.up = False
        self.socket = new_socket(context, zmq.DEALER, bulk=bulk)
        self.fd: int = self.socket.FD
        self.monitor = self.socket.get_monitor_socket(MONITORED)
        self.monitor_fd: int = self.monitor.FD
        # A pipe that nobody has looked into counts as being read, and its descriptor stays silent: so look, while it is empty.
        self.monitor.get(zmq.EVENTS)
        allow_ipv6(self.socket, address)
        self.socket.connect(address)

    def close(self, linger_ms: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)


class Link:
    """Both lanes to one peer, and the bulk messages that wait until ZeroMQ takes them."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], peer: PeerId, control: str, bulk: str) -> None:
        self.peer, self.addresses = peer, (control, bulk)
        self.control, self.bulk = Lane(context, control, bulk=False), Lane(context, bulk, bulk=True)
        self.up = False  # both lanes stand, and it was told
        self.watched = False  # somebody waits for the bulk lane to take more
        self.queue: deque[Outgoing] = deque()
        self._queued_bytes = 0

    @property
    def lanes(self) -> tuple[Lane, Lane]:
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
