"""Outbound link to one peer: a control lane, a bulk lane, and the queue of bulk messages."""

from __future__ import annotations

import contextlib
import errno
import struct
import time
import weakref
from collections import deque
from typing import Any, Protocol, cast

import numpy as np
import zmq
from numpy.typing import NDArray

from gossip.core import PeerId

from .base import AGAIN_MAX_S, AGAIN_S
from .chunks import Outgoing, bytes_of
from .curve import Keys, LinkParties, as_client
from .guard import GREETING
from .sockets import allow_ipv6, is_far, new_socket
from .unix import UnixLane, name_of

QUEUE_PAYLOADS = 64  # bulk messages that wait for one peer
QUEUE_BYTES = 256 * 2**20  # and their memory, which is only referred to; two messages always fit
PATIENCE_S = 2.0
"""Time in seconds for which a lane is rejected before users are notified: keys may be on their
way."""
CUT_S = 1.0
"""After a longer cut between hosts payloads get a new connection. The old one has resent without
effect, each time after a pause twice as long (docs/design_notes.md N24)."""
DISCARD_FRAMES = 4096  # before others get their turn
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""After these events libzmq does not always retry (docs/design_notes.md N12)."""
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
    """Control lane to one peer: a DEALER, with its monitor."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        parties: LinkParties,
    ) -> None:
        self.address, self.up = address, False
        self.rejections = 0  # times in a row
        self.rejected_by, self._rejected_since = 0, 0.0
        self.hung_up = False  # the other side closed one of those connections
        self._refused = self._owes_greeting = False
        # the connection was closed because the other side has sent a frame, which it may not
        self.spoken_to = False
        self._greets = parties.pair is not None
        self.socket = new_socket(context, zmq.DEALER, far=is_far(address))
        if parties.pair is not None:
            as_client(self.socket, parties.pair, parties.other)
        self.room_fd: int = self.socket.FD
        self._monitor = self.socket.get_monitor_socket(MONITORED)
        self.news_fd: int = self._monitor.FD
        # The descriptor of a pipe signals nothing before its events were read once. So they are
        # read while it is empty.
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
                continue  # an event of the closed connection
            if event & (REFUSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                self._note_rejection(event, value in _HUNG_UP)
                continue
            self.up = bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            if self.up:
                self.rejections = 0
                self._owes_greeting = self._greets
            news.append(self.up)
        # Always called, as ``room_fd`` stays readable until then.
        if self._is_spoken_to():
            if not self.spoken_to:
                self._hang_up()
                news.append(False)
            self._discard()
        if self._owes_greeting:
            self._greet()
        return news

    def _hang_up(self) -> None:
        """Close the connection. Its incoming frames are not read, and until it is closed they are
        stored without bound."""
        self.spoken_to, self.up, self._owes_greeting = True, False, False
        self.socket.disconnect(self.address)

    def _is_spoken_to(self) -> bool:
        return bool(cast(int, self.socket.get(_EVENTS)) & _POLLIN)

    def _discard(self) -> None:
        """Receive and drop frames that came before the end of the connection and are queued."""
        with contextlib.suppress(zmq.Again):
            for _ in range(DISCARD_FRAMES):
                self.socket.recv(_DONTWAIT)

    def _greet(self) -> None:
        """Send the first message, which shows the other side the key of the connection
        (``guard``)."""
        # If the connection is not ready, the next call of ``news`` tries again.
        self._owes_greeting = not self.send_frame(GREETING)

    def send_frame(self, frame: bytes) -> bool:
        """Send a message of one frame. Return False if there is no connection, or no room."""
        try:
            self.socket.send(frame, _DONTWAIT)
        except zmq.Again:
            return False
        return True

    def _note_rejection(self, event: int, hung_up: bool) -> None:
        if not self.rejections:
            self._rejected_since, self.rejected_by, self.hung_up = time.monotonic(), event, hung_up
        elif event & REFUSED:
            # A refusal is a better reason than the end of the connection, which may come first.
            self.rejected_by = event
        self.hung_up = self.hung_up or hung_up
        self.rejections += 1
        self._refused = bool(event & REFUSED)

    @property
    def is_persistently_rejected(self) -> bool:
        """Whether the lane was rejected so often, for so long, that users should be notified."""
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
    """Whether the lane is connected, according to ``news``."""
    news_fd: int
    """File descriptor that is readable if there are ``news``."""
    room_fd: int
    """File descriptor that is readable if there may be room again."""

    def news(self) -> list[bool]:
        """Return an entry for each connect (True) and each disconnect (False) since the last
        call."""
        ...

    @property
    def again_s(self) -> float | None:
        """Seconds until ``retry``, after a disconnect; None if the lane reconnects by itself."""
        ...

    def retry(self) -> bool:
        """Try to connect again, if the lane does not do so by itself. Return whether no further
        call is needed until the next disconnect."""
        ...

    def push(self, outgoing: Outgoing) -> bool:
        """Send the next chunk, without advancing. Return False if there is no room or no
        connection."""
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
        self.cut_at = float("inf")  # when the control lane broke; inf while it is connected
        self.up = False  # both lanes are connected, and ``LinkUp`` was reported
        self.watched = False  # a message waits for room in the bulk lane
        self.queue: deque[Outgoing] = deque()
        self._queued_bytes = 0

    @property
    def lanes(self) -> tuple[ControlLane, BulkLane]:
        return self.control, self.bulk

    def lacks_bulk(self, now: float) -> bool:
        """Whether the reconnected control lane was cut for so long that payloads need another
        connection. On one host the network is not the reason: that peer did not read."""
        return now - self.cut_at > CUT_S and self.bulk.up and is_far(self.addresses[1])

    def renew_bulk(self) -> None:
        self.forget()
        self.bulk.close(0)
        self.bulk = self._new_bulk()

    def _new_bulk(self) -> BulkLane:
        address = self.addresses[1]
        if name_of(address):
            return UnixLane(address)
        from .sealed import SealedLane  # a slow import, needed only between hosts and with keys

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
        """Drop the queue. It is worthless on the next connection, as its beginning went over this
        one."""
        self.queue.clear()
        self._queued_bytes = 0


class BuffersInFlight:
    """Memory that is still being sent.

    Every queued or lent message refers to a ``holder``: an array object over the payload's memory
    that has no other reference. It is freed when they are, which a weak reference shows.
    """

    def __init__(self) -> None:
        self._flights: list[tuple[int, int, weakref.ref[NDArray[np.uint8]]]] = []

    def add(self, holder: NDArray[np.uint8]) -> None:
        if len(self._flights) >= 64:
            self._drop_landed()
        self._flights.append((*_span(holder), weakref.ref(holder)))

    def touch(self, data: Any) -> bool:
        """Whether any send still reads from the memory of ``data``."""
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


def why_not(peer: PeerId, lane: ControlLane, keys: Keys | None) -> tuple[str, str]:
    """Return a message for the user, and a hint, for a lane that is rejected repeatedly."""
    where = f"peer {peer} at {lane.address}"
    if lane.rejected_by == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        shown = "" if keys is None else f" {keys.pair.public[:8]}..."
        if keys is not None and (said := keys.not_allowed(keys.pair.public)) is not None:
            return f"{where} does not let us in: our key{shown} {said[0]}", said[1]
        return (
            f"{where} does not know our key{shown}",
            (
                "our seed file has to get there, by the shared folder or by its launcher's join "
                "server; "
                "and our key onto its allow-list (--allowed), if it has one"
            ),
        )
    start = "peers of one run are started either all with keys or all without"
    # Otherwise the handshake failed. A peer that closes a connection at once may also reset it
    # before the reason was read here.
    refused = bool(lane.rejected_by & REFUSED)
    look = "look at its process, and at its log"
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
