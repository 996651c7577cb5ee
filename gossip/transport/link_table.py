"""Links to all peers. The table opens, retries and renews their connections, and sends the messages
in their queues."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

import zmq

from gossip.core import LinkDown, LinkUp, PeerId

from .assembly import Reception
from .base import Arrival
from .chunks import Outgoing
from .curve import Keys, LinkParties
from .lending import BufferPool, Lender
from .links import BuffersInFlight, BulkLane, ControlLane, Link, why_not
from .sockets import endpoint
from .unix import UnixLane, name_of

RETRY_S = 0.05
"""Interval between attempts to connect a lane that does not reconnect by itself, in seconds."""
DRAIN_POLL_S = 0.1


class LinkTable:
    """All links of a transport, with a single descriptor for their events.

    Args:
        reception: Receiver of payloads. After a link is down, the sender's unfinished payloads are
            dropped there soon.
        keys: Keys of the run; None in a run without keys.
        anywhere: Whether peers may be on other hosts.

    Attributes:
        links: Peer -> link.
        fd: Descriptor that is readable if a lane has events, or if a full lane may have room again.
        retry_at: Time of the next ``retry``.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        reception: Reception,
        incarnation: Callable[[], int],
        *,
        keys: Keys | None,
        anywhere: bool,
    ) -> None:
        self._context = context
        self._assembly, self._traffic = reception.assembly, reception.traffic
        self._parties = LinkParties(incarnation, BufferPool())
        self._keys, self._anywhere = keys, anywhere
        self._lender: Lender | None = None  # memory that other peers on this host may read
        self.links: dict[PeerId, Link] = {}
        self._flights = BuffersInFlight()
        # Descriptors that are rarely readable (monitors, full lanes) are behind one epoll
        # descriptor, so that each wait polls only a few descriptors.
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        # Descriptor -> link and lane. The lane is None if the descriptor signals room in the bulk
        # lane.
        self._by_fd: dict[int, tuple[Link, ControlLane | BulkLane | None]] = {}
        # ``news_fd`` of each lane that must be reconnected -> time of the next attempt, and the
        # lane.
        self._closed_lanes: dict[int, tuple[float, ControlLane | BulkLane]] = {}
        self.retry_at = inf
        # Peer without a known key -> its addresses. The table connects to them when the key is
        # known.
        self._keyless: dict[PeerId, tuple[str, str]] = {}

    def connect(self, peer: PeerId, control: str, bulk: str) -> None:
        """Open a link (``Transport.connect``)."""
        known = self.links.get(peer)
        if (known is not None and known.addresses == (control, bulk)) or self._keyless.get(
            peer
        ) == (control, bulk):
            return
        self.disconnect(peer)
        by_name = self._keys is None and name_of(bulk)
        if not (endpoint(control, self._anywhere) and (by_name or endpoint(bulk, self._anywhere))):
            self._traffic.drop("bad_address")
            return
        parties = self._parties
        if self._keys is not None:
            key = self._keys.key_of(peer)
            if key is None:
                self._traffic.drop("keyless")
                self._keyless[peer] = (control, bulk)
                return
            parties = replace(parties, pair=self._keys.pair, other=key)
        link = self.links[peer] = Link(self._context, peer, control, bulk, parties)
        if self._lender is not None and isinstance(link.bulk, UnixLane):
            link.bulk.share(self._lender)
        for lane in link.lanes:
            self._add_lane(link, lane)
        # A frame on this socket violates the protocol. It must be detected at once.
        self._by_fd[link.control.room_fd] = (link, link.control)
        self._epoll.register(link.control.room_fd, select.EPOLLIN)

    def _add_lane(self, link: Link, lane: ControlLane | BulkLane) -> None:
        self._by_fd[lane.news_fd] = (link, lane)
        self._epoll.register(lane.news_fd, select.EPOLLIN)
        self._open(lane, time.monotonic())

    def _renew_bulk(self, link: Link) -> None:
        self._unwatch(link)
        fd = link.bulk.news_fd
        self._epoll.unregister(fd)
        del self._by_fd[fd]
        self._closed_lanes.pop(fd, None)
        link.renew_bulk()
        self._add_lane(link, link.bulk)

    def disconnect(self, peer: PeerId) -> None:
        """Close a link (``Transport.disconnect``)."""
        self._keyless.pop(peer, None)
        link = self.links.pop(peer, None)
        if link is not None:
            for lane in self._unregister(link):
                lane.close(0)

    def _unregister(self, link: Link) -> tuple[ControlLane, BulkLane]:
        link.forget()
        self._unwatch(link)
        for fd in (link.control.room_fd, *(lane.news_fd for lane in link.lanes)):
            self._epoll.unregister(fd)
            del self._by_fd[fd]
        for lane in link.lanes:
            self._closed_lanes.pop(lane.news_fd, None)
        return link.lanes

    def _open(self, lane: ControlLane | BulkLane, now: float) -> None:
        if not lane.retry():
            self._open_later(lane, now + RETRY_S)

    def _open_later(self, lane: ControlLane | BulkLane, at: float) -> None:
        self._closed_lanes[lane.news_fd] = (at, lane)
        self.retry_at = min(self.retry_at, at)

    def retry(self, now: float) -> None:
        """Try to connect the lanes for which the next attempt is due."""
        if now >= self.retry_at:
            self.retry_at = inf
            for fd, (at, lane) in list(self._closed_lanes.items()):
                if at > now:
                    self.retry_at = min(self.retry_at, at)
                else:
                    del self._closed_lanes[fd]
                    self._open(lane, now)

    def follow_keys(self, keys: Keys, arrivals: list[Arrival], now: float) -> None:
        """Connect to peers with keys that have become known. Drop links to peers with keys that
        were revoked or have changed."""
        for link in list(self.links.values()):
            if link.parties.other != keys.key_of(link.peer):
                self.disconnect(link.peer)
                self._keyless[link.peer] = link.addresses
                if link.up:
                    arrivals.append(LinkDown(link.peer, "its key was revoked"))
                    self._assembly.orphan(link.peer, now)
        for peer in [peer for peer in self._keyless if keys.key_of(peer) is not None]:
            self.connect(peer, *self._keyless.pop(peer))

    def _on_rejected(self, link: Link, lane: ControlLane) -> None:
        if self._keys is not None:
            self._keys.refresh()  # the peer may have another key now
        if lane.is_persistently_rejected:
            self._traffic.note(
                ("rejections", link.peer), *why_not(link.peer, lane, self._keys), about=link.peer
            )

    def _process_news(
        self, link: Link, lane: ControlLane | BulkLane, arrivals: list[Arrival]
    ) -> None:
        news = lane.news()
        if isinstance(lane, ControlLane) and lane.spoken_to and False in news:
            self._traffic.drop("spoken_to")
            sent = "sends data where it may only receive: its connection was closed"
            told = f"peer {link.peer} at {lane.address} {sent}"
            self._traffic.note(
                ("spoken_to", link.peer), told, "it is no gossip peer, or it is Byzantine"
            )
        elif isinstance(lane, ControlLane) and lane.rejections:
            self._on_rejected(link, lane)
        elif True in news:
            self._traffic.settled(("rejections", link.peer))
        if (again_s := lane.again_s) is not None and lane.news_fd not in self._closed_lanes:
            self._open_later(lane, time.monotonic() + again_s)
        self._on_news(link, lane, news, arrivals)
        if isinstance(lane, UnixLane) and (declined := lane.declined()):
            self._traffic.note(
                ("declined", link.peer),
                f"peer {link.peer} cannot map the memory of this peer: payloads go over a socket",
                "it has reached its limit of memory or of open files (ulimit -v, ulimit -n)",
                about=link.peer,
            )
            for outgoing in declined:
                self.hand_over(link, outgoing)

    def _on_news(
        self, link: Link, lane: ControlLane | BulkLane, news: list[bool], arrivals: list[Arrival]
    ) -> None:
        for up in news:
            if lane is link.control:
                now = time.monotonic()
                if up and link.lacks_bulk(now):
                    self._renew_bulk(link)
                link.cut_at = inf if up else min(link.cut_at, now)
                if up and self._closed_lanes.pop(link.bulk.news_fd, None) is not None:
                    self._open(link.bulk, now)  # a sealed lane cannot open before the control lane
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
                self._assembly.orphan(link.peer, time.monotonic())

    # --- payloads ---------------------------------------------------------------------------------

    def share(self, lender: Lender) -> None:
        """Permit peers on this host to read payloads in the lender's memory."""
        self._lender = lender
        for link in self.links.values():
            if isinstance(link.bulk, UnixLane):
                link.bulk.share(lender)

    def hand_over(self, link: Link, outgoing: Outgoing) -> bool:
        """Send a message of the bulk lane, or queue it if the lane has no room. Return False if the
        message was dropped."""
        if link.queue:
            self._enqueue(link, outgoing)
        elif not self._push(link, outgoing):
            if outgoing.index == 0 and not link.bulk.up:
                self._traffic.drop("no_link")
                return False
            self._enqueue(link, outgoing)
            self._watch(link)
        return True

    def _enqueue(self, link: Link, outgoing: Outgoing) -> None:
        link.enqueue(outgoing)
        if outgoing.holder is not None:
            self._flights.add(outgoing.holder)

    def _push(self, link: Link, outgoing: Outgoing) -> bool:
        """Send the chunks of a message until all are sent or the lane has no room. Return whether
        all are sent."""
        lane = link.bulk
        if outgoing.lent and outgoing.holder is not None:
            self._flights.add(outgoing.holder)
        while True:
            before = outgoing.sent
            if not lane.push(outgoing):
                return False
            last = outgoing.advance()
            payload_bytes = min(outgoing.sent, outgoing.nbytes) - before
            self._traffic.sent_bytes += outgoing.header_bytes + payload_bytes
            self._traffic.sent_payload_bytes += payload_bytes
            if last:
                self._traffic.sent_messages += 1
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
            self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, link: Link) -> None:
        if link.watched:
            link.watched = False
            fd = link.bulk.room_fd
            del self._by_fd[fd]
            self._epoll.unregister(fd)

    def read_all(self, arrivals: list[Arrival]) -> None:
        """Process the events of all lanes, whether or not their descriptors are readable."""
        self._read_fds(arrivals, list(self._by_fd))

    def read(self, arrivals: list[Arrival]) -> None:
        """Process the events of the lanes with readable descriptors."""
        self._read_fds(arrivals, [fd for fd, _ in self._epoll.poll(0)])

    def _read_fds(self, arrivals: list[Arrival], fds: list[int]) -> None:
        for fd in fds:
            link, lane = self._by_fd.get(fd, (None, None))
            if link is None:
                continue  # an earlier event of this loop has removed the descriptor
            if lane is None:
                self._flush(link)
            else:
                self._process_news(link, lane, arrivals)

    def in_flight(self, data: object) -> bool:
        return self._flights.touch(data)

    # --- end --------------------------------------------------------------------------------------

    def drain(self, deadline: float) -> None:
        """Send the queued messages until all are sent or the deadline has passed."""
        while any(link.queue for link in self.links.values()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            self._read_fds([], [fd for fd, _ in self._epoll.poll(min(remaining, DRAIN_POLL_S))])

    def close_control(self, linger_ms: int) -> list[BulkLane]:
        """Close the control lanes and the table. Return the bulk lanes, which the caller must
        close."""
        lanes = [self._unregister(link) for link in self.links.values()]
        self.links.clear()
        for control, _ in lanes:
            control.close(linger_ms)
        self._epoll.close()
        return [bulk for _, bulk in lanes]
