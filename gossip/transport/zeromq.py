"""The transport: a control lane over ZeroMQ, and a bulk lane. The bulk lane uses shared memory and
unix sockets on one host without keys, and sealed TCP connections otherwise.

There is one inbound socket for each lane (``inbox``, ``sealed``, ``unix``), and one outbound socket
for each peer and lane (``links``). Those of ZeroMQ go one way: inbound ones never send, and
outbound ones never receive. The envelope names the sender, never a ZeroMQ identity. libzmq chooses
the identities, so that no peer can use that of another, or abort this process with one
(docs/design_notes.md N13, N14).

Waits use the file descriptors of the sockets. Those of ZeroMQ are edge-triggered: they signal new
messages only, not those that are left. So after a signal an inbox is read until it is empty, or
kept in ``_unread``. A poll over n sockets with ``zmq.Poller`` costs 13 us at 16 peers, this one 1
us at any number.

No option covers one attack: an endless multipart message grows libzmq's memory before any of it can
be read (libzmq counts whole messages: docs/design_notes.md N10). So addresses other than loopback
need keys, unless ``insecure`` is set: with keys only known peers can send a message.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import zmq
from numpy.typing import NDArray

from gossip.core import BULK_MESSAGES, Envelope, LinkDown, LinkUp, Message, Payload, PeerId
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
from .curve import Keys, LinkParties
from .guard import Guard
from .inbox import ControlInbox, ListenAddress
from .lending import BufferPool, Lender
from .links import BuffersInFlight, BulkLane, ControlLane, Link, why_not
from .sockets import endpoint
from .unix import CHUNK_BYTES as UNIX_CHUNK_BYTES, UnixInbox, name_of

if TYPE_CHECKING:
    from .sealed import SealedInbox

SAFETY_POLL_S = 0.1
"""Interval of the checks of every socket, whatever the descriptors signal, in seconds."""
YIELDED_S = 0.001
"""Duration of a yield, in seconds, beyond which other threads need the processor."""
CROWDED_S = 0.1
"""Time in seconds for which waits sleep after that. A sleeping thread runs at once when a message
comes. A yielding one waits for whole time slices of the others: a short round took twice as
long."""
RETRY_S = 0.05
"""Interval of the attempts to connect a lane that does not reconnect by itself, in seconds."""

_DONTWAIT = int(zmq.DONTWAIT)
_BULK = frozenset(BULK_MESSAGES)


class ZeroMQTransport:
    """Transport as described in the module. One thread drives it."""

    _lender: Lender | None = None  # lender of the memory that others may read
    _sealed_in: SealedInbox | None = None  # the same object as ``_bulk_in``, if it is one
    _awake_from = 0.0  # other threads need the processor: until then waits sleep

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
        """Bind both lanes; port 0 chooses a free one.

        Args:
            same_host: All peers are on this host. Payloads are received over unix sockets, unless
                there are keys. They are sent as the address of the other side requires.
            bulk_name: Abstract name to listen under with ``same_host``; random by default.
            insecure: Allow other addresses than loopback without keys. Any host that reaches them
                can take part.
            keys: Admit only peers with a known key, each under its own name, and encrypt all
                messages.

        Raises: ConfigError: ``host`` is not loopback, or no address of this machine. AddressInUse:
            The port is in use. LocalError: An unknown key is admitted.
        """
        self.traffic = Traffic()
        self.link_timeout_s = (
            LINK_TIMEOUT_S if is_loopback(host.strip("[]")) else FAR_LINK_TIMEOUT_S
        )
        self._run, self._local, self._keys = run, local, keys
        self._anywhere = insecure or keys is not None
        self._incarnation = incarnation if callable(incarnation) else lambda: incarnation
        gate = HeaderFilter(run, local, payload_limit, self.traffic)
        self._links: dict[PeerId, Link] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, min(8192, self._context.get(zmq.SOCKET_LIMIT)))
        self._closed = self.woken = False
        self._guard: Guard | None = None
        try:
            self._guard = None if keys is None else Guard(self._context, keys, self.traffic)
            where = ListenAddress(self._context, host, control_port, self._anywhere, self._guard)
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

        # Rarely readable descriptors (monitors, full lanes) are behind one epoll, so that a wait
        # polls few.
        self._control_fd, self._bulk_fd = self._control_in.fd, self._bulk_in.fd
        self._rare = select.epoll()
        self._rare_fd = self._rare.fileno()
        # None: the bulk lane, which waits for room
        self._by_fd: dict[int, tuple[Link, ControlLane | BulkLane | None]] = {}
        self._poller = select.poll()
        for fd in (self._control_fd, self._bulk_fd, self._rare_fd):
            self._poller.register(fd, select.POLLIN)
        self._wake: frozenset[int] = frozenset()
        self._unread = {self._control_fd, self._bulk_fd}
        self._flights, self._rooms = BuffersInFlight(), BufferPool()
        # last message, its incarnation, and its envelope
        self._said: tuple[Message, int, bytes] | None = None
        self._look_at = 0.0
        # lanes to be reconnected, and when
        self._closed_lanes: dict[int, tuple[float, ControlLane | BulkLane]] = {}
        self._retry_at = float("inf")
        # addresses of peers to connect to as soon as their keys are known
        self._keyless: dict[PeerId, tuple[str, str]] = {}
        self._keys_seen = -1
        if self._guard is not None:
            self._poller.register(self._guard.fd, select.POLLIN)

    def _bulk_inbox(
        self, where: ListenAddress, gate: HeaderFilter, unix_name: str | None
    ) -> UnixInbox | SealedInbox:
        """``unix_name``: None: peers may be on other hosts."""
        if unix_name is not None and where.guard is None:
            return UnixInbox(Reception(gate, UNIX_CHUNK_BYTES), unix_name)
        from .sealed import SealedInbox  # a slow import, needed only between hosts and with keys

        self._sealed_in = SealedInbox(where, Reception(gate), self._incarnation)
        self._control_in.on_offer = self._sealed_in.offered
        return self._sealed_in

    # --- links ------------------------------------------------------------------------------------

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        known = self._links.get(peer)
        if (known is not None and known.addresses == (control, bulk)) or self._keyless.get(
            peer
        ) == (control, bulk):
            return
        self.disconnect(peer)
        by_name = self._keys is None and name_of(bulk)
        if not (endpoint(control, self._anywhere) and (by_name or endpoint(bulk, self._anywhere))):
            self.traffic.drop("bad_address")
            return
        parties = LinkParties(self._incarnation, self._rooms)
        if self._keys is not None:
            key = self._keys.key_of(peer)
            if key is None:
                self.traffic.drop("keyless")
                self._keyless[peer] = (control, bulk)
                return
            parties = replace(parties, pair=self._keys.pair, other=key)
        link = self._links[peer] = Link(self._context, peer, control, bulk, parties)
        if self._lender is not None:
            link.bulk.share(self._lender)
        for lane in link.lanes:
            self._add_lane(link, lane)
        # No frame may come there. If one does, it is handled at once.
        self._by_fd[link.control.room_fd] = (link, link.control)
        self._rare.register(link.control.room_fd, select.EPOLLIN)

    def _add_lane(self, link: Link, lane: ControlLane | BulkLane) -> None:
        self._by_fd[lane.news_fd] = (link, lane)
        self._rare.register(lane.news_fd, select.EPOLLIN)
        self._open(lane, time.monotonic())

    def _renew_bulk(self, link: Link) -> None:
        self._unwatch(link)
        fd = link.bulk.news_fd
        self._rare.unregister(fd)
        del self._by_fd[fd]
        self._closed_lanes.pop(fd, None)
        link.renew_bulk()
        self._add_lane(link, link.bulk)

    def disconnect(self, peer: PeerId) -> None:
        self._keyless.pop(peer, None)
        link = self._links.pop(peer, None)
        if link is not None:
            self._close_link(link, 0)

    def _close_link(self, link: Link, linger_ms: int) -> None:
        for lane in self._unregister(link):
            lane.close(linger_ms)

    def _unregister(self, link: Link) -> tuple[ControlLane, BulkLane]:
        link.forget()
        self._unwatch(link)
        for fd in (link.control.room_fd, *(lane.news_fd for lane in link.lanes)):
            self._rare.unregister(fd)
            del self._by_fd[fd]
        for lane in link.lanes:
            self._closed_lanes.pop(lane.news_fd, None)
        return link.lanes

    def _open(self, lane: ControlLane | BulkLane, now: float) -> None:
        if not lane.retry():
            self._open_later(lane, now + RETRY_S)

    def _open_later(self, lane: ControlLane | BulkLane, at: float) -> None:
        self._closed_lanes[lane.news_fd] = (at, lane)
        self._retry_at = min(self._retry_at, at)

    def _retry(self, now: float) -> None:
        if now >= self._retry_at:
            self._retry_at = float("inf")
            for fd, (at, lane) in list(self._closed_lanes.items()):
                if at > now:
                    self._retry_at = min(self._retry_at, at)
                else:
                    del self._closed_lanes[fd]
                    self._open(lane, now)

    def _attend(self, arrivals: list[Arrival], now: float) -> None:
        """Admit peers with a known key, and drop links and connections with revoked keys."""
        assert self._guard is not None, "only where there are keys"
        self._guard.poll_events(now)
        keys = self._guard.keys
        if keys.version == self._keys_seen:
            return
        self._keys_seen = keys.version
        for link in list(self._links.values()):
            if link.parties.other != keys.key_of(link.peer):
                self.disconnect(link.peer)
                self._keyless[link.peer] = link.addresses
                if link.up:
                    arrivals.append(LinkDown(link.peer, "its key counts no more"))
                    self._reception.assembly.orphan(link.peer, now)
        for peer in [peer for peer in self._keyless if keys.key_of(peer) is not None]:
            self.connect(peer, *self._keyless.pop(peer))
        self._guard.sweep()
        if self._sealed_in is not None:
            self._sealed_in.sweep()

    def _on_rejected(self, link: Link, lane: ControlLane) -> None:
        if self._keys is not None:
            self._keys.refresh()  # its key may be another one by now
        if lane.is_persistently_rejected:
            self.traffic.note(
                ("rejections", link.peer), *why_not(link.peer, lane, self._keys), about=link.peer
            )

    def _process_news(
        self, link: Link, lane: ControlLane | BulkLane, arrivals: list[Arrival]
    ) -> None:
        news = lane.news()
        if isinstance(lane, ControlLane) and lane.spoken_to and False in news:
            self.traffic.drop("spoken_to")
            told = f"peer {link.peer} at {lane.address} speaks where it is to listen: hung up on it"
            self.traffic.note(
                ("spoken_to", link.peer), told, "it is no peer of gossip, or a Byzantine one"
            )
        elif isinstance(lane, ControlLane) and lane.rejections:
            self._on_rejected(link, lane)
        elif True in news:
            self.traffic.settled(("rejections", link.peer))
        if (again_s := lane.again_s) is not None and lane.news_fd not in self._closed_lanes:
            self._open_later(lane, time.monotonic() + again_s)
        self._on_news(link, lane, news, arrivals)
        if lane is link.bulk and (declined := link.bulk.declined()):
            self.traffic.note(
                ("declined", link.peer),
                f"peer {link.peer} cannot map the memory of this peer: payloads go over a socket",
                "it has reached its limit of memory or of open files (ulimit -v, ulimit -n)",
                about=link.peer,
            )
            for outgoing in declined:
                self._hand_over(link, outgoing)

    def _on_news(
        self, link: Link, lane: ControlLane | BulkLane, news: list[bool], arrivals: list[Arrival]
    ) -> None:
        for up in news:
            if lane is link.control:
                now = time.monotonic()
                if up and link.lacks_bulk(now):
                    self._renew_bulk(link)
                link.cut_at = float("inf") if up else min(link.cut_at, now)
                if up and self._closed_lanes.pop(link.bulk.news_fd, None) is not None:
                    self._open(link.bulk, now)  # what it waited for may be just this
            if up:
                if link.control.up and link.bulk.up and not link.up:
                    link.up = True
                    arrivals.append(LinkUp(link.peer))
                continue
            bulk = lane is link.bulk
            if bulk:
                link.forget()
                self._unwatch(link)
            if link.up:
                link.up = False
                arrivals.append(
                    LinkDown(
                        link.peer, "bulk connection closed" if bulk else "control connection closed"
                    )
                )
                self._reception.assembly.orphan(link.peer, time.monotonic())

    # --- out --------------------------------------------------------------------------------------

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        link = self._links.get(peer)
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
        """Return the envelope of a message. It is encoded once for consecutive receivers."""
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
        if holder is not None and (lent := link.bulk.lend(envelope, holder)) is not None:
            return self._hand_over(link, lent)
        return self._hand_over(link, Outgoing(envelope, holder, link.bulk.chunk_bytes))

    def _hand_over(self, link: Link, outgoing: Outgoing) -> bool:
        if link.queue:
            self._enqueue(link, outgoing)
        elif not self._push(link, outgoing):
            if outgoing.index == 0 and not link.bulk.up:
                self.traffic.drop("no_link")
                return False
            self._enqueue(link, outgoing)
            self._watch(link)
        return True

    def share(
        self, fd: int, memory: NDArray[np.uint8], room: ResultRoom, *, updates_stay: bool = False
    ) -> None:
        self._reception.room, self._reception.updates_stay = room, updates_stay
        if not isinstance(self._bulk_in, UnixInbox):
            return  # peers are on several hosts, or payloads are encrypted
        try:
            self._lender = Lender(fd, memory)
        except OSError as error:
            self.traffic.note(
                "unsealed",
                f"memory cannot be shared with the other peers of this host: {error}",
                "payloads go over sockets, which takes longer; a newer kernel may help",
            )
            return
        for link in self._links.values():
            link.bulk.share(self._lender)

    def _enqueue(self, link: Link, outgoing: Outgoing) -> None:
        link.enqueue(outgoing)
        if outgoing.holder is not None:
            self._flights.add(outgoing.holder)

    def _push(self, link: Link, outgoing: Outgoing) -> bool:
        """Send chunks until all are sent or the lane has no room. Return whether all are sent."""
        lane = link.bulk
        if outgoing.index == 0 and outgoing.holder is not None and lane.refers_to(outgoing):
            self._flights.add(outgoing.holder)
        while True:
            before = outgoing.sent
            if not lane.push(outgoing):
                return False
            last = outgoing.advance()
            payload_bytes = min(outgoing.sent, outgoing.nbytes) - before
            self.traffic.sent_bytes += outgoing.header_bytes + payload_bytes
            self.traffic.sent_payload_bytes += payload_bytes
            if last:
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
            fd = link.bulk.room_fd
            self._by_fd[fd] = (link, None)
            self._rare.register(fd, select.EPOLLIN)

    def _unwatch(self, link: Link) -> None:
        if link.watched:
            link.watched = False
            fd = link.bulk.room_fd
            del self._by_fd[fd]
            self._rare.unregister(fd)

    def in_flight(self, data: object) -> bool:
        return self._flights.touch(data)

    # --- in ---------------------------------------------------------------------------------------

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        now = time.monotonic()
        deadline = now + timeout_s
        self._said = None
        if isinstance(self._bulk_in, UnixInbox):
            self._bulk_in.return_released()
        wanted = frozenset(wake)
        if wanted != self._wake:
            self._set_wake(wanted)
        arrivals: list[Arrival] = []
        while True:
            wait_s = (
                0.0
                if self._unread
                else max(0.0, min(deadline - now, SAFETY_POLL_S, self._retry_at - now))
            )
            heard = {fd for fd, _ in self._poll_descriptors(wait_s, awake_s)}
            now = time.monotonic()
            self._retry(now)
            look_everywhere = now >= self._look_at
            if look_everywhere:
                self._look_at = now + SAFETY_POLL_S
                self._read_news(arrivals, list(self._by_fd))
                heard |= {self._control_fd, self._bulk_fd}
            if self._guard is not None:
                if (
                    look_everywhere
                    or self._guard.fd in heard
                    or self._guard.keys.version != self._keys_seen
                ):
                    self._attend(arrivals, now)
                heard.discard(self._guard.fd)
            self._unread |= heard - wanted
            self._read_unread(arrivals, now)
            if look_everywhere and self._bulk_fd not in self._unread:
                # Payloads do not expire while this peer itself is behind with reading.
                self._reception.assembly.expire(now)
            self.woken = not wanted.isdisjoint(heard)
            if arrivals or now >= deadline or self.woken:
                return arrivals

    def _read_unread(self, arrivals: list[Arrival], now: float) -> None:
        """Read a burst from each readable descriptor, the control lane first."""
        if self._control_fd in self._unread and self._control_in.read(arrivals):
            self._unread.discard(self._control_fd)
        if self._rare_fd in self._unread:
            self._unread.discard(self._rare_fd)
            self._read_news(arrivals, [fd for fd, _ in self._rare.poll(0)])
        if self._bulk_fd in self._unread and self._bulk_in.read(arrivals, now):
            self._unread.discard(self._bulk_fd)

    def _poll_descriptors(self, wait_s: float, awake_s: float) -> list[tuple[int, int]]:
        """Return the readable descriptors, after at most ``wait_s``. For the first ``awake_s`` the
        wait yields instead of sleeping."""
        look = self._poller.poll
        clock = time.monotonic
        if wait_s > 0.0 and awake_s > 0.0 and (now := clock()) >= self._awake_from:
            until = now + min(wait_s, awake_s)
            while now < until:
                if ready := look(0):
                    return ready
                # Other threads may wait for this processor, perhaps the local trainer.
                asked = clock()
                os.sched_yield()
                now = clock()
                if now - asked > YIELDED_S:
                    self._awake_from = now + CROWDED_S
                    break
        return look(wait_s * 1000)

    def _set_wake(self, wanted: frozenset[int]) -> None:
        for fd in self._wake - wanted:
            self._poller.unregister(fd)
        for fd in wanted - self._wake:
            self._poller.register(fd, select.POLLIN)
        self._wake = wanted

    def _read_news(self, arrivals: list[Arrival], fds: list[int]) -> None:
        for fd in fds:
            link, lane = self._by_fd.get(fd, (None, None))
            if link is None:
                continue  # an earlier event has closed this lane, which waited for room
            if lane is None:
                self._flush(link)
            else:
                self._process_news(link, lane, arrivals)

    # --- the end ----------------------------------------------------------------------------------

    def close(self, linger_s: float = 0.0) -> None:
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + linger_s
        while any(link.queue for link in self._links.values()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            self._read_news([], [fd for fd, _ in self._rare.poll(min(remaining, SAFETY_POLL_S))])
        linger_ms = max(0, round((deadline - time.monotonic()) * 1000))
        lanes = [lane for link in self._links.values() for lane in self._unregister(link)]
        self._links.clear()
        for lane in lanes:
            if isinstance(lane, ControlLane):
                lane.close(linger_ms)
        if self._guard is not None:
            self._guard.close()
        self._control_in.close()
        try:
            self._context.term()  # waits for what lingers
        finally:
            # Peers learn of the end of these sockets at once. That must not overtake the farewell.
            for end in (*lanes, self._bulk_in):
                if not isinstance(end, ControlLane):
                    end.close()
            self._rare.close()
