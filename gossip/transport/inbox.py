"""Inbox of the control lane: a bound ROUTER socket, which only receives.

The descriptor of a ROUTER is edge-triggered: it signals new messages, but not unread messages. So
``read`` returns whether it has read all messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import zmq

from gossip.core import PeerId, Received

from .assembly import ANYBODY, HeaderFilter
from .base import Arrival
from .chunks import OFFER_MARK
from .guard import GREETING, NOBODY, Guard
from .sockets import bind, new_socket

BURST_MESSAGES = 256  # Maximum number of messages to read before the bulk lane is served.
DISCARD_FRAMES = 4096  # Frames of a rejected message to drop before other sockets are served.

_DONTWAIT = int(zmq.DONTWAIT)
_RCVMORE = int(zmq.RCVMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_OFFER_BYTE = bytes([OFFER_MARK])
_NOTHING = bytearray()


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address at which an inbox listens.

    Attributes:
        anywhere: Whether addresses other than loopback are allowed.
        guard: Guard that admits only connections with a valid key; None to admit every connection.
    """

    context: zmq.Context[zmq.Socket[bytes]]
    host: str
    port: int
    anywhere: bool
    guard: Guard | None


class ControlInbox:
    """Receiver of the control messages of all peers. Each message has a single frame."""

    def __init__(self, where: ListenAddress, gate: HeaderFilter) -> None:
        """Listen at ``where``. Raises: ConfigError, AddressInUse."""
        self.socket = new_socket(where.context, zmq.ROUTER)
        self._guarded = None if where.guard is None else where.guard.socket_of(self.socket)
        self.address = bind(self.socket, where.host, where.port, where.anywhere)
        self.fd: int = self.socket.FD
        self._gate, self._traffic = gate, gate.traffic
        self._discarding = False  # whether frames of a rejected message must still be dropped
        self.on_offer: Callable[[PeerId, bytes], None] | None = None
        """Stores a session that a peer offers for its payloads. None if the bulk lane has no
        sessions."""

    def read(self, arrivals: list[Arrival]) -> bool:
        """Read at most ``BURST_MESSAGES`` messages. Return whether all were read, so that ``fd``
        signals the next."""
        if not self._discard():
            return False
        for _ in range(BURST_MESSAGES):
            try:
                owner = self._next_owner()
            except zmq.Again:
                return True
            if not self._read_message(owner, arrivals):
                return False
            if self._is_empty():
                return True
        return False

    def _next_owner(self) -> PeerId:
        """Return the owner of the connection of the next message. Raises: zmq.Again: There is no
        message."""
        if self._guarded is None:
            self.socket.recv(_DONTWAIT)
            return ANYBODY
        return self._guarded.owner_of(self.socket.recv(_DONTWAIT, copy=False))

    def _read_message(self, owner: PeerId, arrivals: list[Arrival]) -> bool:
        """Read one message. Return False if frames of a rejected message must still be dropped."""
        if owner == NOBODY:
            return self._refuse_rest()
        frame = self.socket.recv(_DONTWAIT)
        if not self.socket.get(_RCVMORE):
            if frame == GREETING and owner != ANYBODY:
                return True
            if self.on_offer is not None and frame[:1] == _OFFER_BYTE:
                self.on_offer(owner, frame)
                return True
        self._traffic.received_messages += 1
        self._traffic.received_bytes += len(frame)
        if self.socket.get(_RCVMORE):
            self._traffic.drop("malformed")
            return self._refuse_rest()
        envelope = self._gate.control(frame, owner)
        if envelope is not None:
            arrivals.append(Received(envelope.sender, envelope.incarnation, envelope.message))
        return True

    def _refuse_rest(self) -> bool:
        """Drop the remaining frames of this message. Return False if more than ``DISCARD_FRAMES``
        remain."""
        self._discarding = True
        return self._discard()

    def _discard(self) -> bool:
        if self._discarding:
            for _ in range(DISCARD_FRAMES):
                if not self.socket.get(_RCVMORE):
                    self._discarding = False
                    return True
                self.socket.recv_into(_NOTHING, flags=_DONTWAIT)
            return False
        return True

    def _is_empty(self) -> bool:
        """Whether no further message is available. This check takes half the time of a failed
        read."""
        return not cast(int, self.socket.get(_EVENTS)) & _POLLIN

    def close(self) -> None:
        self.socket.close(linger=0)
