"""The ways in over ZeroMQ: one bound ROUTER a lane, on which nothing is ever sent.

A ROUTER's descriptor tells of news only, not of what is left (it is edge-triggered underneath), so
``read`` says whether it has read everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import zmq

from gossip.core import PeerId, Received

from .assembly import ANYBODY, HeaderFilter, IncomingPayload, Reception
from .base import Arrival, Traffic
from .chunks import NEXT_MARK
from .guard import GREETING, NOBODY, Guard
from .sockets import bind, bound_address, new_socket

BURST_MESSAGES = 256  # before the other lane gets its turn
BURST_BYTES = 2**20
DISCARD_FRAMES = 4096  # of a message with too many frames, before others get their turn

_DONTWAIT = int(zmq.DONTWAIT)
_RCVMORE = int(zmq.RCVMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_NEXT_BYTE = bytes([NEXT_MARK])
_NOTHING = bytearray()


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where an inbox listens.

    Attributes:
        anywhere: It may be another address than a loopback one.
        guard: Who lets in only those with a key; None: whoever comes is let in.
    """

    context: zmq.Context[zmq.Socket[bytes]]
    host: str
    port: int
    anywhere: bool
    guard: Guard | None


class Inbox(Protocol):
    """Where what others send comes in."""

    fd: int
    """Readable when something has come."""
    address: str

    def read(self, arrivals: list[Arrival], now: float) -> bool:
        """Takes what has come, within bounds. Whether ``fd`` will tell of all that is left."""
        ...

    def close(self) -> None: ...


class _Router:
    """A bound socket whose messages have few frames."""

    def __init__(self, where: ListenAddress, traffic: Traffic, *, bulk: bool) -> None:
        """Raises: ConfigError, AddressInUse."""
        self.socket = new_socket(where.context, zmq.ROUTER, bulk=bulk)
        self._join_server = None if where.guard is None else where.guard.socket_of(self.socket)
        bind(self.socket, where.host, where.port, where.anywhere)
        self.address = bound_address(self.socket)
        self.fd: int = self.socket.FD
        self.traffic = traffic
        self._discarding = False  # in the middle of a message that nobody wants

    def next_message(self) -> tuple[bytes, PeerId]:
        """The connection that the next message comes on, and whose that is. Raises:
        zmq.Again: There is none.

        A connection may be named as the other side likes, with keys as without: of names, each
        owner has its own.
        """
        if self._join_server is None:
            return self.socket.recv(_DONTWAIT), ANYBODY
        frame = self.socket.recv(_DONTWAIT, copy=False)
        owner = self._join_server.owner_of(frame)
        return b"%d %b" % (owner, frame.bytes), owner

    def refuse_rest(self) -> bool:
        """Throws the rest of this message away. False when that is not done yet: the message has
        very many frames."""
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
        """Half the price of an exception."""
        return not cast(int, self.socket.get(_EVENTS)) & _POLLIN

    def close(self) -> None:
        self.socket.close(linger=0)


class ControlInbox(_Router):
    """Messages of one frame each."""

    def __init__(self, where: ListenAddress, gate: HeaderFilter) -> None:
        """Raises: ConfigError, AddressInUse."""
        super().__init__(where, gate.traffic, bulk=False)
        self._gate = gate

    def read(self, arrivals: list[Arrival], now: float) -> bool:
        socket, traffic = self.socket, self.traffic
        if not self.discard():
            return False
        for _ in range(BURST_MESSAGES):
            try:
                _, owner = self.next_message()
            except zmq.Again:
                return True
            if owner == NOBODY:
                if not self.refuse_rest():
                    return False
                continue
            data = socket.recv(_DONTWAIT)
            if data == GREETING and owner != ANYBODY and not socket.get(_RCVMORE):
                continue
            traffic.received_messages += 1
            traffic.received_bytes += len(data)
            if socket.get(_RCVMORE):
                traffic.drop("malformed")
                if not self.refuse_rest():
                    return False
                continue
            envelope = self._gate.control(data, owner)
            if envelope is not None:
                arrivals.append(Received(envelope.sender, envelope.incarnation, envelope.message))
            if self.empty():
                return True
        return False


class BulkInbox(_Router):
    """Messages with payloads, in chunks."""

    def __init__(self, where: ListenAddress, reception: Reception) -> None:
        """Raises: ConfigError, AddressInUse."""
        super().__init__(where, reception.traffic, bulk=True)
        self._reception = reception

    def read(self, arrivals: list[Arrival], now: float) -> bool:
        socket, traffic = self.socket, self.traffic
        if not self.discard():
            return False
        stop_at = traffic.received_bytes + BURST_BYTES
        for _ in range(BURST_MESSAGES):
            try:
                connection, owner = self.next_message()
            except zmq.Again:
                return True
            if owner == NOBODY:
                if not self.refuse_rest():
                    return False
                continue
            header = socket.recv(_DONTWAIT)
            if header == GREETING and owner != ANYBODY and not socket.get(_RCVMORE):
                continue
            # a payload's later chunks are no messages
            traffic.received_messages += header[:1] != _NEXT_BYTE
            traffic.received_bytes += len(header)
            if socket.get(_RCVMORE):
                incoming = self._reception.chunk(connection, header, now, owner)
                received = None if incoming is None else self._take_chunk(connection, incoming)
                if incoming is not None and received is None:
                    arrivals += incoming.news(now)
                if socket.get(_RCVMORE) and not self.refuse_rest():
                    return False
            else:
                received = self._reception.plain(header, owner)
            if received is not None:
                arrivals.append(received)
            if self.empty():
                return True
            if traffic.received_bytes >= stop_at:
                return False
        return False

    def _take_chunk(self, connection: bytes, incoming: IncomingPayload) -> Received | None:
        room = incoming.room()
        got = self.socket.recv_into(room, flags=_DONTWAIT)
        self.traffic.received_bytes += got
        return self._reception.filled(
            connection, incoming, got == len(room) and not self.socket.get(_RCVMORE)
        )
