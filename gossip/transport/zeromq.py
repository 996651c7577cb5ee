"""The transport over ZeroMQ: two lanes a peer, control and bulk, on sockets of their own.

Inbound there is one bound ROUTER a lane; outbound one DEALER a peer and lane. Nothing is ever sent on a ROUTER and nothing is
received on a DEALER. Who speaks is said in the envelope, never by a ZeroMQ identity: identities are chosen by libzmq, so that
nobody can take another's (reliability.md F7) and nobody can abort us with one (F8).

Waiting is done on the sockets' file descriptors. Such a descriptor tells of news only, not of what is left (it is edge-triggered
underneath), so a socket that was heard of is read until it is empty, or remembered in ``_unread``. A poll over n sockets
with ``zmq.Poller`` costs 13 us at 16 peers, this one 1 us at any number.

The one danger that no option covers: a multipart message without end grows libzmq's memory before we see any of it
(F4, libzmq counts whole messages). That is why only loopback is bound until keys keep strangers out.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import zmq
from numpy.typing import NDArray

from gossip.core.events import LinkDown, LinkUp, Payload, Received
from gossip.core.messages import BULK_MESSAGES, Envelope, Message, PeerId

from .assembly import Assembly, Gate, Incoming
from .base import Arrival, PayloadLimit, Traffic
from .chunks import CHUNK_BYTES, FIRST, FIRST_MARK, NEXT, NEXT_MARK, Outgoing, bytes_of, checksum
from .codec import HEADER_BYTES_MAX, encode
from .links import Flights, Lane, Link
from .sockets import bind, bound_address, endpoint, new_socket

ZERO_COPY_BYTES = (
    512 * 1024
)  # below it a copy is cheaper than the bookkeeping of libzmq's and pyzmq's: 23 us against 34 at 256 KiB
BURST_MESSAGES = 256  # of the control lane before others get their turn
BURST_BYTES = 2**20  # of the bulk lane before the control lane is looked at again
DISCARD_FRAMES = 4096  # of a message with too many frames, before others get their turn
SAFETY_POLL_S = 0.1  # look at every socket this often, whatever the descriptors say

_DONTWAIT = int(zmq.DONTWAIT)
_DONTWAIT_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)
_MONITOR_EVENT = struct.Struct("=Hi")
_BULK = frozenset(BULK_MESSAGES)
_NEXT_BYTE = bytes([NEXT_MARK])
_NOTHING = bytearray()


class ZeroMQTransport:
    """See the module. Driven by one thread."""

    def __init__(
        self,
        run: bytes,
        local: PeerId,
        incarnation: Callable[[], int] | int,
        payload_limit: PayloadLimit,
        host: str = "127.0.0.1",
        control_port: int = 0,
        bulk_port: int = 0,
    ) -> None:
        """Binds both lanes; port 0 takes a free one.

        Raises: ConfigError: ``host`` is not loopback. AddressInUse: somebody has the port.
        """
        self.traffic = Traffic()
        self._run, self._local = run, local
        self._incarnation = incarnation if callable(incarnation) else lambda: incarnation
        self._gate = Gate(run, local, payload_limit, self.traffic)
        self._assembly = Assembly(self.traffic)
        self._links: dict[PeerId, Link] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, min(8192, self._context.get(zmq.SOCKET_LIMIT)))
        self._control_in = new_socket(self._context, zmq.ROUTER, bulk=False)
        self._bulk_in = new_socket(self._context, zmq.ROUTER, bulk=True)
        self._closed = False
        try:
            bind(self._control_in, host, control_port)
            bind(self._bulk_in, host, bulk_port)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.control, self.bulk = bound_address(self._control_in), bound_address(self._bulk_in)

        # Rarely heard descriptors (monitors, lanes that are full) sit behind one epoll, so that a wait looks at few.
        self._control_fd, self._bulk_fd = self._control_in.FD, self._bulk_in.FD
        self._rare = select.epoll()
        self._rare_fd = self._rare.fileno()
        self._by_fd: dict[int, tuple[Link, Lane | None]] = {}  # None: the bulk lane, waiting to take more
        self._poller = select.poll()
        for fd in (self._control_fd, self._bulk_fd, self._rare_fd):
            self._poller.register(fd, select.POLLIN)
        self._wake: frozenset[int] = frozenset()
        self._unread = {self._control_fd, self._bulk_fd}
        self._discarding: set[int] = set()  # lanes in the middle of a message that nobody wants
        self._flights = Flights()
        self._summed: tuple[Payload, int] | None = None
        self._look_at = 0.0

    # --- links ------------------------------------------------------------------------------------------------------------

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        known = self._links.get(peer)
        if known is not None and known.addresses == (control, bulk):
            return
        self.disconnect(peer)
        if not (endpoint(control) and endpoint(bulk)):
            self.traffic.drop("bad_address")
            return
        link = self._links[peer] = Link(self._context, peer, control, bulk)
        for lane in link.lanes:
            self._by_fd[lane.monitor_fd] = (link, lane)
            self._rare.register(lane.monitor_fd, select.EPOLLIN)

    def disconnect(self, peer: PeerId) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            self._close_link(link, 0)

    def _close_link(self, link: Link, linger_ms: int) -> None:
        link.forget()
        self._unwatch(link)
        for lane in link.lanes:
            self._rare.unregister(lane.monitor_fd)
            del self._by_fd[lane.monitor_fd]
            lane.close(linger_ms)

    def _hear_monitor(self, link: Link, lane: Lane, arrivals: list[Arrival]) -> None:
        while True:
            try:
                frames = lane.monitor.recv_multipart(_DONTWAIT)
            except zmq.Again:
                break
            event, _ = _MONITOR_EVENT.unpack(frames[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                lane.up = True
                if link.control.up and link.bulk.up and not link.up:
                    link.up = True
                    arrivals.append(LinkUp(link.peer))
            elif event == zmq.EVENT_DISCONNECTED:
                lane.up = False
                if lane.bulk:
                    link.forget()
                    self._unwatch(link)
                if link.up:
                    link.up = False
                    arrivals.append(LinkDown(link.peer, "bulk connection closed" if lane.bulk else "control connection closed"))
                    self._assembly.orphan(link.peer, time.monotonic())

    # --- out --------------------------------------------------------------------------------------------------------------

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        link = self._links.get(peer)
        if link is None:
            self.traffic.drop("no_link")
            return False
        envelope = encode(Envelope(self._run, self._local, self._incarnation(), message))
        if type(message) in _BULK:
            return self._send_bulk(link, envelope, payload)
        try:
            link.control.socket.send(envelope, _DONTWAIT)
        except zmq.Again:
            self.traffic.drop("full" if link.control.up else "no_link")
            return False
        self.traffic.sent_messages += 1
        self.traffic.sent_bytes += len(envelope)
        return True

    def _send_bulk(self, link: Link, envelope: bytes, payload: Payload | None) -> bool:
        holder = None if payload is None else bytes_of(payload.data)
        if link.queue and not link.has_room(0 if holder is None else len(holder)):
            self.traffic.drop("full")
            return False
        outgoing = Outgoing(envelope, holder, 0 if payload is None or holder is None else self._sum_of(payload, holder))
        if link.queue:
            self._enqueue(link, outgoing)
        elif not self._push(link, outgoing):
            if outgoing.index == 0 and not link.bulk.up:
                self.traffic.drop("no_link")
                return False
            self._enqueue(link, outgoing)
            self._watch(link)
        return True

    def _sum_of(self, payload: Payload, holder: NDArray[np.uint8]) -> int:
        """One payload often goes to many peers in a row: it is summed once."""
        if self._summed is None or self._summed[0] is not payload:
            self._summed = (payload, checksum(holder))
        return self._summed[1]

    def _enqueue(self, link: Link, outgoing: Outgoing) -> None:
        link.enqueue(outgoing)
        if outgoing.holder is not None and outgoing.sent == 0:
            self._flights.add(outgoing.holder)

    def _push(self, link: Link, outgoing: Outgoing) -> bool:
        """Hands over chunks until all are gone, or ZeroMQ takes no more. Returns whether all are gone."""
        socket = link.bulk.socket
        while True:
            header, chunk = outgoing.frames()
            try:
                if chunk is None:
                    socket.send(header, _DONTWAIT)
                else:
                    socket.send(header, _DONTWAIT_MORE)
                    whole = len(chunk)
                    if outgoing.nbytes < ZERO_COPY_BYTES:
                        socket.send(chunk, _DONTWAIT)
                    else:
                        if outgoing.index == 0 and outgoing.holder is not None:
                            self._flights.add(outgoing.holder)
                        socket.send(chunk, _DONTWAIT, copy=False)
                    self.traffic.sent_bytes += whole
            except zmq.Again:
                # A non-blocking send may say so although room was made since: asking for the events looks again.
                if cast(int, socket.get(_EVENTS)) & _POLLOUT:
                    continue
                return False
            self.traffic.sent_bytes += len(header)
            if outgoing.advance():
                self.traffic.sent_messages += 1
                return True

    def _flush(self, link: Link) -> None:
        while link.queue:
            if not self._push(link, link.queue[0]):
                return
            link.dequeue()
        self._unwatch(link)

    def _watch(self, link: Link) -> None:
        if not link.watched:
            link.watched = True
            fd = link.bulk.fd
            self._by_fd[fd] = (link, None)
            self._rare.register(fd, select.EPOLLIN)

    def _unwatch(self, link: Link) -> None:
        if link.watched:
            link.watched = False
            fd = link.bulk.fd
            del self._by_fd[fd]
            self._rare.unregister(fd)

    def in_flight(self, data: object) -> bool:
        return self._flights.touch(data)

    # --- in ---------------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float, wake: Sequence[int] = ()) -> list[Arrival]:
        now = time.monotonic()
        deadline = now + timeout_s
        self._summed = None
        wanted = frozenset(wake)
        if wanted != self._wake:
            self._set_wake(wanted)
        arrivals: list[Arrival] = []
        while True:
            wait_s = 0.0 if self._unread else max(0.0, min(deadline - now, SAFETY_POLL_S))
            heard = {fd for fd, _ in self._poller.poll(wait_s * 1000)}
            now = time.monotonic()
            look_everywhere = now >= self._look_at
            if look_everywhere:
                self._look_at = now + SAFETY_POLL_S
                self._read_monitors(arrivals, list(self._by_fd))
                heard |= {self._control_fd, self._bulk_fd}
            self._unread |= heard - wanted
            if self._control_fd in self._unread:
                self._read_control(arrivals)
            if self._rare_fd in self._unread:
                self._unread.discard(self._rare_fd)
                self._read_monitors(arrivals, [fd for fd, _ in self._rare.poll(0)])
            if self._bulk_fd in self._unread:
                self._read_bulk(arrivals, now)
            if look_everywhere and self._bulk_fd not in self._unread:
                self._assembly.expire(now)  # not while it is we who are behind
            if arrivals or now >= deadline or not wanted.isdisjoint(heard):
                return arrivals

    def _set_wake(self, wanted: frozenset[int]) -> None:
        for fd in self._wake - wanted:
            self._poller.unregister(fd)
        for fd in wanted - self._wake:
            self._poller.register(fd, select.POLLIN)
        self._wake = wanted

    def _read_monitors(self, arrivals: list[Arrival], fds: list[int]) -> None:
        for fd in fds:
            link, lane = self._by_fd.get(fd, (None, None))
            if link is None:
                continue  # it was a lane that waited, and the monitor before it told that it closed
            if lane is None:
                self._flush(link)
            else:
                self._hear_monitor(link, lane, arrivals)

    def _read_control(self, arrivals: list[Arrival]) -> None:
        socket, traffic = self._control_in, self.traffic
        if not self._discard(socket, self._control_fd):
            return
        for _ in range(BURST_MESSAGES):
            try:
                socket.recv(_DONTWAIT)  # the connection: nothing hangs on it here
            except zmq.Again:
                self._unread.discard(self._control_fd)
                return
            data = socket.recv(_DONTWAIT)
            traffic.received_messages += 1
            traffic.received_bytes += len(data)
            if socket.get(_RCVMORE):
                traffic.drop("malformed")
                if not self._refuse_rest(socket, self._control_fd):
                    return
                continue
            envelope = self._gate.control(data)
            if envelope is not None:
                arrivals.append(Received(envelope.sender, envelope.incarnation, envelope.message))
            if not cast(int, socket.get(_EVENTS)) & _POLLIN:  # half the price of an exception
                self._unread.discard(self._control_fd)
                return

    def _read_bulk(self, arrivals: list[Arrival], now: float) -> None:
        socket, traffic = self._bulk_in, self.traffic
        if not self._discard(socket, self._bulk_fd):
            return
        stop_at = traffic.received_bytes + BURST_BYTES
        for _ in range(BURST_MESSAGES):
            try:
                connection = socket.recv(_DONTWAIT)
            except zmq.Again:
                self._unread.discard(self._bulk_fd)
                return
            header = socket.recv(_DONTWAIT)
            traffic.received_messages += header[:1] != _NEXT_BYTE  # a payload's later chunks are no messages
            traffic.received_bytes += len(header)
            if socket.get(_RCVMORE):
                incoming = self._open_chunk(connection, header, now)
                if incoming is not None:
                    self._take_chunk(connection, incoming, arrivals)
                if socket.get(_RCVMORE) and not self._refuse_rest(socket, self._bulk_fd):
                    return
            else:
                envelope = self._gate.bulk(header, None)
                if envelope is not None:
                    arrivals.append(Received(envelope.sender, envelope.incarnation, envelope.message))
            if not cast(int, socket.get(_EVENTS)) & _POLLIN:
                self._unread.discard(self._bulk_fd)
                return
            if traffic.received_bytes >= stop_at:
                return

    def _open_chunk(self, connection: bytes, header: bytes, now: float) -> Incoming | None:
        """The payload that the next frame belongs to. None, counted, when it belongs to none."""
        mark = header[0] if header else 0
        if mark == FIRST_MARK and FIRST.size < len(header) <= FIRST.size + HEADER_BYTES_MAX:
            _, transfer, nbytes, expected_sum = FIRST.unpack_from(header)
            envelope = self._gate.bulk(memoryview(header)[FIRST.size :], nbytes)
            if envelope is None:
                return None
            incoming = Incoming(envelope, nbytes, expected_sum, now)
            if nbytes > CHUNK_BYTES or len(self._assembly):
                self._assembly.begin(connection, transfer, incoming)
            return incoming
        if mark == NEXT_MARK and len(header) == NEXT.size:
            _, transfer, index = NEXT.unpack(header)
            return self._assembly.expect(connection, transfer, index, now)
        self.traffic.drop("malformed")
        return None

    def _take_chunk(self, connection: bytes, incoming: Incoming, arrivals: list[Arrival]) -> None:
        socket = self._bulk_in
        room = incoming.room()
        got = socket.recv_into(room, flags=_DONTWAIT)
        self.traffic.received_bytes += got
        if got != len(room) or socket.get(_RCVMORE):
            self.traffic.drop("malformed")
            self._assembly.done(connection)
        elif incoming.grow():
            self._assembly.done(connection)
            received = incoming.finish()
            if received is None:
                self.traffic.drop("corrupt")
            else:
                arrivals.append(received)

    def _refuse_rest(self, socket: zmq.Socket[bytes], fd: int) -> bool:
        """Throws the rest of this message away. False when that is not done yet: the message has very many frames."""
        self._discarding.add(fd)
        return self._discard(socket, fd)

    def _discard(self, socket: zmq.Socket[bytes], fd: int) -> bool:
        if fd in self._discarding:
            for _ in range(DISCARD_FRAMES):
                if not socket.get(_RCVMORE):
                    self._discarding.discard(fd)
                    return True
                socket.recv_into(_NOTHING, flags=_DONTWAIT)
            return False
        return True

    # --- the end ----------------------------------------------------------------------------------------------------------

    def close(self, linger_s: float = 0.0) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + linger_s
        while any(link.queue for link in self._links.values()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            self._read_monitors([], [fd for fd, _ in self._rare.poll(min(remaining, SAFETY_POLL_S))])
        linger_ms = max(0, round((deadline - time.monotonic()) * 1000))
        for peer in list(self._links):
            self._close_link(self._links.pop(peer), linger_ms)
        self._control_in.close(linger=0)
        self._bulk_in.close(linger=0)
        self._context.term()  # waits for what lingers
        self._rare.close()
