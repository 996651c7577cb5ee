"""Outbound link to one peer: a control lane, a bulk lane, and the queue of bulk messages."""

from __future__ import annotations

import contextlib
import errno
import struct
import time
import weakref
from collections import deque
from typing import Any, Protocol, cast

import zmq

from gossip.core import PeerId
from gossip.vectors import ByteArray, to_bytes

from .base import AGAIN_MAX_S, AGAIN_S
from .chunks import Outgoing
from .curve import Keys, LinkParties, as_client
from .guard import GREETING
from .lending import start_of
from .sockets import allow_ipv6, is_far, new_socket
from .unix import UnixLane, name_of

QUEUE_PAYLOADS = 64  # Maximum number of bulk messages in the queue of one peer.
QUEUE_BYTES = 256 * 2**20  # Maximum size of their payloads; two messages are always accepted.
PATIENCE_S = 2.0
"""Time for which a lane must be rejected before the user is notified, in seconds. The key may still
be in transit."""
CUT_S = 1.0
"""Duration of a cut between hosts, in seconds, after which payloads use a new connection. TCP
doubles its retransmission timeout during a cut, so the old connection would stay silent for long
after the cut (docs/design_notes.md N24)."""
DISCARD_FRAMES = 4096  # maximum number of frames to drop before other sockets are served
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""Events after which libzmq does not always connect again (docs/design_notes.md N12)."""
MONITORED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | REFUSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

_DONTWAIT = int(zmq.DONTWAIT)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_MONITOR_EVENT = struct.Struct("=Hi")
_HUNG_UP = frozenset((errno.EPIPE, errno.ECONNRESET))


class ControlLane:
    """Control lane to one peer: a DEALER socket with its monitor."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        parties: LinkParties,
    ) -> None:
        self.address, self.up = address, False
        self.rejections = 0  # number of consecutive rejections
        self.rejected_by, self._rejected_since = 0, 0.0
        self.hung_up = False  # whether the other side closed one of the rejected connections
        self._refused = self._owes_greeting = False
        # Whether the connection was closed because the other side sent a frame, which violates the
        # protocol.
        self.spoken_to = False
        self._greets = parties.pair is not None
        self.socket = new_socket(context, zmq.DEALER, far=is_far(address))
        if parties.pair is not None:
            as_client(self.socket, parties.pair, parties.other)
        self.room_fd: int = self.socket.FD
        self._monitor = self.socket.get_monitor_socket(MONITORED)
        self.news_fd: int = self._monitor.FD
        # The descriptor of the monitor signals nothing before its events were read once. So they
        # are read now, while there are none.
        self._monitor.get(zmq.EVENTS)
        allow_ipv6(self.socket, address)
        self.socket.connect(address)

    def news(self) -> list[bool]:
        news: list[bool] = []
        while True:
            try:
                frames = self._monitor.recv_multipart(_DONTWAIT)
            except zmq.Again:
                break
            event, value = _MONITOR_EVENT.unpack(frames[0])
            if self.spoken_to:
                continue  # an event of the connection that was closed
            if event & (REFUSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                self._note_rejection(event, value in _HUNG_UP)
                continue
            self.up = bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            if self.up:
                self.rejections = 0
                self._owes_greeting = self._greets
            news.append(self.up)
        # This check is always necessary, because ``room_fd`` stays readable until the events are
        # read.
        if self._is_spoken_to():
            if not self.spoken_to:
                self._hang_up()
                news.append(False)
            self._discard()
        if self._owes_greeting:
            self._greet()
        return news

    def _hang_up(self) -> None:
        """Close the connection. Otherwise libzmq would store the frames that arrive, without
        bound."""
        self.spoken_to, self.up, self._owes_greeting = True, False, False
        self.socket.disconnect(self.address)

    def _is_spoken_to(self) -> bool:
        return bool(cast(int, self.socket.get(_EVENTS)) & _POLLIN)

    def _discard(self) -> None:
        """Drop the queued frames that arrived before the connection was closed."""
        with contextlib.suppress(zmq.Again):
            for _ in range(DISCARD_FRAMES):
                self.socket.recv(_DONTWAIT)

    def _greet(self) -> None:
        """Send the first message of the connection. It reveals the key of the connection to the
        other side (``guard``)."""
        # If the connection is not ready, the next call of ``news`` tries again.
        self._owes_greeting = not self.send_frame(GREETING)

    def send_frame(self, frame: bytes) -> bool:
        """Send a message of one frame. Return False if there is no connection or no room."""
        try:
            self.socket.send(frame, _DONTWAIT)
        except zmq.Again:
            return False
        return True

    def _note_rejection(self, event: int, hung_up: bool) -> None:
        if not self.rejections:
            self._rejected_since, self.rejected_by, self.hung_up = time.monotonic(), event, hung_up
        elif event & REFUSED:
            # The end of the connection may be reported before the rejection, which is the more
            # precise reason.
            self.rejected_by = event
        self.hung_up = self.hung_up or hung_up
        self.rejections += 1
        self._refused = bool(event & REFUSED)

    @property
    def is_persistently_rejected(self) -> bool:
        """Whether the lane was rejected so often, and for so long, that the user is notified."""
        return self.rejections >= 3 and time.monotonic() - self._rejected_since >= PATIENCE_S

    @property
    def again_s(self) -> float | None:
        if self.spoken_to:
            return AGAIN_MAX_S
        return (
            min(AGAIN_MAX_S, AGAIN_S * 2.0 ** min(self.rejections - 1, 10))
            if self._refused
            else None
        )

    def retry(self) -> bool:
        if self.spoken_to and self._is_spoken_to():
            self._discard()
            return False
        if self._refused and not self.spoken_to:
            self.socket.disconnect(self.address)
        if self._refused or self.spoken_to:
            self._refused = self.spoken_to = False
            self.socket.connect(self.address)
        return True

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=linger_ms)


class BulkLane(Protocol):
    """Lane that carries payloads to one peer."""

    chunk_bytes: int
    up: bool
    """Whether the lane is connected, as of the last ``news``."""
    news_fd: int
    """File descriptor that is readable if there are ``news``."""
    room_fd: int
    """File descriptor that is readable if the lane may have room again."""

    def news(self) -> list[bool]:
        """Return True for each connection and False for each disconnection since the last call, in
        order."""
        ...

    @property
    def again_s(self) -> float | None:
        """Delay before ``retry`` must be called, in seconds; None if the lane connects by
        itself."""
        ...

    def retry(self) -> bool:
        """Try to connect, if the lane does not connect by itself. Return False if this method must
        be called again."""
        ...

    def push(self, outgoing: Outgoing) -> bool:
        """Send the next chunk of ``outgoing``. The caller then advances ``outgoing``. Return False
        if there is no room or no connection."""
        ...

    def close(self, linger_ms: int = 0) -> None: ...


class Link:
    """Both lanes to one peer, and the queue of the bulk lane."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        peer: PeerId,
        control: str,
        bulk: str,
        parties: LinkParties,
    ) -> None:
        self.peer, self.addresses, self.parties = peer, (control, bulk), parties
        self.control = ControlLane(context, control, parties)
        self.bulk = self._new_bulk()
        self.cut_at = float("inf")  # Time when the control lane was disconnected; inf if connected.
        self.up = False  # Whether ``LinkUp`` was reported, because both lanes were connected.
        self.watched = False  # Whether a message waits for room in the bulk lane.
        self.queue: deque[Outgoing] = deque()
        self._queued_bytes = 0

    @property
    def lanes(self) -> tuple[ControlLane, BulkLane]:
        return self.control, self.bulk

    def lacks_bulk(self, now: float) -> bool:
        """Whether payloads need a new connection, because the control lane was disconnected for
        more than ``CUT_S`` before it reconnected. Within one host this is never so: there the cause
        is not the network, but a peer that did not read."""
        return now - self.cut_at > CUT_S and self.bulk.up and is_far(self.addresses[1])

    def renew_bulk(self) -> None:
        self.forget()
        self.bulk.close(0)
        self.bulk = self._new_bulk()

    def _new_bulk(self) -> BulkLane:
        address = self.addresses[1]
        if name_of(address):
            return UnixLane(address)
        from .sealed import SealedLane  # a slow import, and only needed between hosts or with keys

        return SealedLane(address, self.parties, self.control.send_frame)

    def has_room(self, nbytes: int) -> bool:
        waiting = len(self.queue)
        return waiting < 2 or (
            waiting < QUEUE_PAYLOADS and self._queued_bytes + nbytes <= QUEUE_BYTES
        )

    def enqueue(self, outgoing: Outgoing) -> None:
        self.queue.append(outgoing)
        self._queued_bytes += outgoing.nbytes

    def dequeue(self) -> None:
        self._queued_bytes -= self.queue.popleft().nbytes

    def forget(self) -> None:
        """Drop the queue. Its first message may be sent in part, so the next connection cannot
        continue it."""
        self.queue.clear()
        self._queued_bytes = 0


class BuffersInFlight:
    """Memory of payloads that are still being sent.

    Every queued or lent message has a ``holder``: an array object over the memory of the payload.
    Only messages refer to it, so it is freed together with the last of them. A weak reference
    detects this.
    """

    def __init__(self) -> None:
        self._flights: list[tuple[int, int, weakref.ref[ByteArray]]] = []

    def add(self, holder: ByteArray) -> None:
        if len(self._flights) >= 64:
            self._drop_landed()
        self._flights.append((*_span(holder), weakref.ref(holder)))

    def touch(self, data: Any) -> bool:
        """Whether a message that is still being sent refers to the memory of ``data``."""
        self._drop_landed()
        if not self._flights:
            return False
        start, stop = _span(to_bytes(data))
        return any(first < stop and start < last for first, last, _ in self._flights)

    def _drop_landed(self) -> None:
        self._flights = [flight for flight in self._flights if flight[2]() is not None]


def _span(memory: ByteArray) -> tuple[int, int]:
    start = start_of(memory)
    return start, start + len(memory)


def why_not(peer: PeerId, lane: ControlLane, keys: Keys | None) -> tuple[str, str]:
    """Return a message to the user, and a hint, about a lane that is rejected repeatedly."""
    where = f"peer {peer} at {lane.address}"
    if lane.rejected_by == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        shown = "" if keys is None else f" {keys.pair.public[:8]}..."
        if keys is not None and (said := keys.not_allowed(keys.pair.public)) is not None:
            return f"{where} does not admit this peer: the local key{shown} {said[0]}", said[1]
        return (
            f"{where} does not know the local key{shown}",
            (
                "the seed file of this peer must reach that host, through the shared folder or "
                "the join server of its launcher; if that host has an allow-list (--allowed), "
                "add the key to it"
            ),
        )
    start = "start all peers of a run with keys, or all without keys"
    # In all other cases the handshake has failed. If the other peer closes a connection at once,
    # the reset may arrive before the reason could be read.
    refused = bool(lane.rejected_by & REFUSED)
    look = "check its process and its log"
    if not refused and not lane.hung_up:
        return (
            (
                f"{where} accepts connections and sends nothing: it is stopped, hangs, or is no "
                "peer of gossip"
            ),
            look,
        )
    if keys is None:
        if refused:
            return f"{where} accepts no peer without a key", start
        return (
            f"{where} closes every connection: it accepts no peer without a key, or is no peer "
            "of gossip",
            start,
        )
    if lane.rejected_by == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return f"{where} has no key", start
    other = (
        "it has no key, its key differs from its seed file, it admits no peer, or is no peer "
        "of gossip"
    )
    return f"{where} ends every handshake: {other}", f"{start}; {look}"
