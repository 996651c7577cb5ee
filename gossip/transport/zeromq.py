"""Transport with a control lane over ZeroMQ and a bulk lane. On one host without keys, the bulk
lane uses shared memory and Unix sockets. Otherwise it uses sealed TCP connections.

Each lane has one inbound socket (``inbox``, ``sealed``, ``unix``), and one outbound socket for each
peer (``links``). The sockets of ZeroMQ are unidirectional: inbound sockets never send, and outbound
sockets never receive. The envelope of a message names the sender. Routing ids of ZeroMQ are not
used for that. libzmq chooses them, so that no peer can use another peer's routing id, or abort this
process with a routing id (docs/design_notes.md N13, N14).

The transport waits on the file descriptors of the sockets. Those of ZeroMQ are edge-triggered: they
signal only new messages, not unread messages. So after a signal an inbox stays in ``_unread`` until
it is empty. A poll with ``zmq.Poller`` takes 13 us for 16 peers. This poll takes 1 us for any
number of peers.

No option of libzmq prevents one attack: an endless multipart message fills the memory, because
    libzmq limits the number of whole messages and stores incomplete messages (docs/design_notes.md
    N10). So addresses other than loopback need keys, unless ``insecure`` is set. With keys, only
    known peers can send a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import zmq
from numpy.typing import NDArray

from gossip.core import BULK_MESSAGES, Envelope, Message, Payload, PeerId
from gossip.vectors import to_bytes

from .addresses import is_loopback
from .assembly import HeaderFilter, Reception
from .base import (
    FAR_LINK_TIMEOUT_S,
    LINK_TIMEOUT_S,
    Arrival,
    PayloadLimit,
    ResultRoom,
    Traffic,
)
from .chunks import Outgoing
from .codec import encode
from .curve import Keys
from .guard import Guard
from .inbox import ControlInbox, ListenAddress
from .lending import Lender
from .link_table import LinkTable
from .links import Link
from .unix import CHUNK_BYTES as UNIX_CHUNK_BYTES, UnixInbox, UnixLane
from .waiting import Waiter

if TYPE_CHECKING:
    from .sealed import SealedInbox

SAFETY_POLL_S = 0.1
"""Interval in seconds at which all sockets are checked, even if their descriptors are not
readable."""

_DONTWAIT = int(zmq.DONTWAIT)
_BULK = frozenset(BULK_MESSAGES)


class ZeroMQTransport:
    """Transport over ZeroMQ, and over Unix sockets or sealed TCP. Only one thread may call it."""

    _sealed_in: SealedInbox | None = None  # equals ``_bulk_in`` if that is a sealed inbox

    def __init__(
        self,
        run: bytes,
        local: PeerId,
        incarnation: Callable[[], int] | int,
        payload_limit: PayloadLimit,
        host: str = "127.0.0.1",
        control_port: int = 0,
        bulk_port: int = 0,
        *,
        same_host: bool = False,
        bulk_name: str = "",
        insecure: bool = False,
        keys: Keys | None = None,
    ) -> None:
        """Bind both lanes. Port 0 means a free port.

        Args:
            same_host: Whether all peers are on this host. If so, and if there are no keys, payloads
                are received over Unix sockets. How payloads are sent depends on the address of the
                receiver.
            bulk_name: Abstract name of the Unix socket, if ``same_host`` is true; random by
                default.
            insecure: Whether to allow addresses other than loopback without keys. Any host that
                reaches the address can then join.
            keys: Keys of the run. With keys, only peers with a known key are admitted, no peer can
                send in the name of another, and all messages are encrypted.

        Raises: ConfigError: ``host`` is not a loopback address and neither ``keys`` nor
        ``insecure`` is set, or ``host`` is not an address of this machine. AddressInUse: The port
        is in use. LocalError: The self-test of the keys failed.
        """
        self.traffic = Traffic()
        self.link_timeout_s = (
            LINK_TIMEOUT_S if is_loopback(host.strip("[]")) else FAR_LINK_TIMEOUT_S
        )
        self._run, self._local = run, local
        anywhere = insecure or keys is not None
        self._incarnation = incarnation if callable(incarnation) else lambda: incarnation
        gate = HeaderFilter(run, local, payload_limit, self.traffic)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, min(8192, self._context.get(zmq.SOCKET_LIMIT)))
        self._closed = self.woken = False
        self._guard: Guard | None = None
        try:
            self._guard = None if keys is None else Guard(self._context, keys, self.traffic)
            where = ListenAddress(self._context, host, control_port, anywhere, self._guard)
            self._control_in = ControlInbox(where, gate)
            if self._guard is not None:
                self._guard.prove_closed((self._control_in.address,))
            bulk_where = replace(where, port=bulk_port)
            self._bulk_in = self._bulk_inbox(bulk_where, gate, bulk_name if same_host else None)
        except BaseException:
            if self._guard is not None:
                self._guard.close()
            self._context.destroy(linger=0)
            raise
        self._reception = self._bulk_in.reception
        self.control, self.bulk = self._control_in.address, self._bulk_in.address

        self._table = LinkTable(
            self._context,
            self._reception,
            self._incarnation,
            keys=keys,
            anywhere=anywhere,
        )
        self._control_fd, self._bulk_fd = self._control_in.fd, self._bulk_in.fd
        guard_fds = () if self._guard is None else (self._guard.fd,)
        self._waiter = Waiter(self._control_fd, self._bulk_fd, self._table.fd, *guard_fds)
        self._unread = {self._control_fd, self._bulk_fd}
        # Last message that was encoded, this peer's incarnation then, and the encoded envelope.
        self._said: tuple[Message, int, bytes] | None = None
        self._look_at = 0.0
        self._keys_seen = -1

    def _bulk_inbox(
        self, where: ListenAddress, gate: HeaderFilter, unix_name: str | None
    ) -> UnixInbox | SealedInbox:
        """Return the inbox of the bulk lane. ``unix_name`` is None if peers may be on other
        hosts."""
        if unix_name is not None and where.guard is None:
            return UnixInbox(Reception(gate, UNIX_CHUNK_BYTES), unix_name)
        from .sealed import SealedInbox  # a slow import, and only needed between hosts or with keys

        self._sealed_in = SealedInbox(where, Reception(gate), self._incarnation)
        self._control_in.on_offer = self._sealed_in.offered
        return self._sealed_in

    # --- links ------------------------------------------------------------------------------------

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        self._table.connect(peer, control, bulk)

    def disconnect(self, peer: PeerId) -> None:
        self._table.disconnect(peer)

    def _attend(self, guard: Guard, arrivals: list[Arrival], now: float) -> None:
        """Process requests for admission. If the keys have changed, connect to peers with new keys,
        and drop links and connections with revoked keys."""
        guard.poll_events(now)
        if guard.keys.version == self._keys_seen:
            return
        self._keys_seen = guard.keys.version
        self._table.follow_keys(guard.keys, arrivals, now)
        guard.sweep()
        if self._sealed_in is not None:
            self._sealed_in.sweep()

    # --- outgoing ---------------------------------------------------------------------------------

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        link = self._table.links.get(peer)
        if link is None:
            self.traffic.drop("no_link")
            return False
        envelope = self._envelope_of(message)
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

    def _envelope_of(self, message: Message) -> bytes:
        """Return the encoded envelope of a message. If a message is sent to several peers in a row,
        it is encoded only once."""
        incarnation, said = self._incarnation(), self._said
        if said is None or said[0] is not message or said[1] != incarnation:
            said = self._said = (
                message,
                incarnation,
                encode(Envelope(self._run, self._local, incarnation, message)),
            )
        return said[2]

    def _send_bulk(self, link: Link, envelope: bytes, payload: Payload | None) -> bool:
        holder = None if payload is None else to_bytes(payload.data)
        if link.queue and not link.has_room(0 if holder is None else len(holder)):
            self.traffic.drop("full")
            return False
        if isinstance(link.bulk, UnixLane) and holder is not None:
            lent = link.bulk.lend(envelope, holder)
            if lent is not None:
                return self._table.hand_over(link, lent)
        return self._table.hand_over(link, Outgoing(envelope, holder, link.bulk.chunk_bytes))

    def share(
        self, fd: int, memory: NDArray[np.uint8], room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        self._reception.room, self._reception.updates_stay = room, updates_stay
        if not isinstance(self._bulk_in, UnixInbox):
            return  # payloads of other peers arrive over TCP
        try:
            self._table.share(Lender(fd, memory))
        except OSError as error:
            self.traffic.note(
                "unsealed",
                f"memory cannot be shared with the other peers of this host: {error}",
                "payloads go over sockets, which takes longer; a newer kernel may help",
            )

    def in_flight(self, data: object) -> bool:
        return self._table.in_flight(data)

    # --- incoming ---------------------------------------------------------------------------------

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        now = time.monotonic()
        deadline = now + timeout_s
        self._said = None
        if isinstance(self._bulk_in, UnixInbox):
            self._bulk_in.return_released()
        wanted = frozenset(wake)
        if wanted != self._waiter.wake:
            self._waiter.set_wake(wanted)
        arrivals: list[Arrival] = []
        while True:
            wait_s = (
                0.0
                if self._unread
                else max(0.0, min(deadline - now, SAFETY_POLL_S, self._table.retry_at - now))
            )
            heard = {fd for fd, _ in self._waiter.wait(wait_s, awake_s)}
            now = time.monotonic()
            self._table.retry(now)
            look_everywhere = now >= self._look_at
            if look_everywhere:
                self._look_at = now + SAFETY_POLL_S
                self._table.read_all(arrivals)
                heard |= {self._control_fd, self._bulk_fd}
            if self._guard is not None:
                if (
                    look_everywhere
                    or self._guard.fd in heard
                    or self._guard.keys.version != self._keys_seen
                ):
                    self._attend(self._guard, arrivals, now)
                heard.discard(self._guard.fd)
            self._unread |= heard - wanted
            self._read_unread(arrivals, now)
            if look_everywhere and self._bulk_fd not in self._unread:
                # While unread data remain, a payload may seem stalled only because this peer has
                # not read it.
                self._reception.assembly.expire(now)
            self.woken = not wanted.isdisjoint(heard)
            if arrivals or now >= deadline or self.woken:
                return arrivals

    def _read_unread(self, arrivals: list[Arrival], now: float) -> None:
        """Read a limited amount from each readable descriptor, from the control lane first."""
        if self._control_fd in self._unread and self._control_in.read(arrivals):
            self._unread.discard(self._control_fd)
        if self._table.fd in self._unread:
            self._unread.discard(self._table.fd)
            self._table.read(arrivals)
        if self._bulk_fd in self._unread and self._bulk_in.read(arrivals, now):
            self._unread.discard(self._bulk_fd)

    # --- end --------------------------------------------------------------------------------------

    def close(self, linger_s: float = 0.0) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + linger_s
        self._table.drain(deadline)
        lanes = self._table.close_control(max(0, round((deadline - time.monotonic()) * 1000)))
        if self._guard is not None:
            self._guard.close()
        self._control_in.close()
        try:
            self._context.term()  # waits until all messages are sent, or for the linger time
        finally:
            # Peers detect at once that these sockets are closed, so the messages of the control
            # lane must be sent before.
            for end in (*lanes, self._bulk_in):
                end.close()
