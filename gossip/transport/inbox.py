"""Inboxes over ZeroMQ: one bound ROUTER for each lane, which never sends.

The descriptor of a ROUTER is edge-triggered: it signals new messages only, not those that are left.
So ``read`` returns whether it has read everything.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import zmq

from gossip.core import PeerId, Received

from .assembly import ANYBODY, HeaderFilter, IncomingPayload, Reception
from .base import Arrival, Traffic
from .chunks import NEXT_MARK, OFFER_MARK
from .guard import GREETING, NOBODY, Guard
from .sockets import bind, new_socket

BURST_MESSAGES = 256  # messages before the other lane gets its turn
BURST_BYTES = 2**20  # bytes before the other lane gets its turn
DISCARD_FRAMES = 4096  # frames of a message with too many, before other sockets get their turn

_DONTWAIT = int(zmq.DONTWAIT)
_RCVMORE = int(zmq.RCVMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_NEXT_BYTE, _OFFER_BYTE = bytes([NEXT_MARK]), bytes([OFFER_MARK])
_NOTHING = bytearray()


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address at which an inbox listens.

    Attributes:
        anywhere: Whether it may be another address than a loopback one.
        guard: Guard that admits only peers with a key; None: every connection is admitted.
    """

    context: zmq.Context[zmq.Socket[bytes]]
    host: str
    port: int
    anywhere: bool
    guard: Guard | None


class _Router(ABC):
    """A bound socket for messages with few frames."""

    burst_bytes: float = math.inf  # before the other lane gets its turn

    def __init__(self, where: ListenAddress, traffic: Traffic, *, bulk: bool) -> None:
        """Raises: ConfigError, AddressInUse."""
        self.socket = new_socket(where.context, zmq.ROUTER, bulk=bulk)
        self._join_server = None if where.guard is None else where.guard.socket_of(self.socket)
        self.address = bind(self.socket, where.host, where.port, where.anywhere)
        self.fd: int = self.socket.FD
        self.traffic = traffic
        self._discarding = False  # in the middle of a rejected message

    def read(self, arrivals: list[Arrival], now: float) -> bool:
        """Take what has come, within bounds. Return whether ``fd`` reports all that is left."""
        if not self.discard():
            return False
        stop_at = self.traffic.received_bytes + self.burst_bytes
        for _ in range(BURST_MESSAGES):
            try:
                connection, owner = self.next_message()
            except zmq.Again:
                return True
            if owner == NOBODY:
                if not self.refuse_rest():
                    return False
                continue
            frame = self.socket.recv(_DONTWAIT)
            if frame == GREETING and owner != ANYBODY and not self.socket.get(_RCVMORE):
                continue
            if not self.read_message(connection, owner, frame, arrivals, now):
                return False
            if self.empty():
                return True
            if self.traffic.received_bytes >= stop_at:
                return False
        return False

    @abstractmethod
    def read_message(
        self, connection: bytes, owner: PeerId, frame: bytes, arrivals: list[Arrival], now: float
    ) -> bool:
        """Read the message that begins with ``frame``. Return False if its rest is still to be
        dropped."""

    def next_message(self) -> tuple[bytes, PeerId]:
        """Return the connection of the next message, and its owner.

        The other side chooses the name of a connection, with keys and without. So names count for
        each owner separately.

        Raises: zmq.Again: There is no message.
        """
        if self._join_server is None:
            return self.socket.recv(_DONTWAIT), ANYBODY
        frame = self.socket.recv(_DONTWAIT, copy=False)
        owner = self._join_server.owner_of(frame)
        return b"%d %b" % (owner, frame.bytes), owner

    def refuse_rest(self) -> bool:
        """Drop the rest of this message. Return False if some is left: the message has very many
        frames."""
        self._discarding = True
        return self.discard()

    def discard(self) -> bool:
        if self._discarding:
            for _ in range(DISCARD_FRAMES):
                if not self.socket.get(_RCVMORE):
                    self._discarding = False
                    return True
                self.socket.recv_into(_NOTHING, flags=_DONTWAIT)
            return False
        return True

    def empty(self) -> bool:
        """Whether there is no further message. This takes half the time of an exception."""
        return not cast(int, self.socket.get(_EVENTS)) & _POLLIN

    def close(self) -> None:
        self.socket.close(linger=0)


class ControlInbox(_Router):
    """Messages of one frame each."""

    def __init__(self, where: ListenAddress, gate: HeaderFilter) -> None:
        """Raises: ConfigError, AddressInUse."""
        super().__init__(where, gate.traffic, bulk=False)
        self._gate = gate
        self.on_offer: Callable[[PeerId, bytes], None] | None = None
        """Callback for sessions for payloads that peers offer; None: no session is accepted."""

    def read_message(
        self, connection: bytes, owner: PeerId, frame: bytes, arrivals: list[Arrival], now: float
    ) -> bool:
        more = self.socket.get(_RCVMORE)
        if self.on_offer is not None and frame[:1] == _OFFER_BYTE and not more:
            self.on_offer(owner, frame)
            return True
        self.traffic.received_messages += 1
        self.traffic.received_bytes += len(frame)
        if more:
            self.traffic.drop("malformed")
            return self.refuse_rest()
        envelope = self._gate.control(frame, owner)
        if envelope is not None:
            arrivals.append(Received(envelope.sender, envelope.incarnation, envelope.message))
        return True


class BulkInbox(_Router):
    """Messages with payloads, in chunks."""

    burst_bytes = BURST_BYTES

    def __init__(self, where: ListenAddress, reception: Reception) -> None:
        """Raises: ConfigError, AddressInUse."""
        super().__init__(where, reception.traffic, bulk=True)
        self.reception = reception

    def read_message(
        self, connection: bytes, owner: PeerId, frame: bytes, arrivals: list[Arrival], now: float
    ) -> bool:
        # a payload's later chunks are no messages
        self.traffic.received_messages += frame[:1] != _NEXT_BYTE
        self.traffic.received_bytes += len(frame)
        if self.socket.get(_RCVMORE):
            incoming = self.reception.chunk(connection, frame, now, owner)
            received = None if incoming is None else self._read_chunk(connection, incoming)
            if incoming is not None and received is None:
                arrivals += incoming.news(now)
            if self.socket.get(_RCVMORE) and not self.refuse_rest():
                return False
        else:
            received = self.reception.plain(frame, owner)
        if received is not None:
            arrivals.append(received)
        return True

    def _read_chunk(self, connection: bytes, incoming: IncomingPayload) -> Received | None:
        room = incoming.room()
        got = self.socket.recv_into(room, flags=_DONTWAIT)
        self.traffic.received_bytes += got
        return self.reception.filled(
            connection, incoming, got == len(room) and not self.socket.get(_RCVMORE)
        )
