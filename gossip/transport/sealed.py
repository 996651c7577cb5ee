"""Bulk lane between hosts and in runs with keys: TCP connections with sealed records
(``sessions``).

Any host that reaches the port can open a connection. So only 44 bytes are read from a connection
that has not proved a session, and the connection is closed after ``HANDSHAKE_S``. At most
``UNPROVEN_MAX`` unproven connections are open at a time. If there are more, the oldest connection
of the host with most of them is closed. This lane does not use ZeroMQ, because with ZeroMQ a peer
could abort the receiver's process or fill its memory (docs/design_notes.md N26).

Without keys, any host that reaches the control lane can offer a session. Sealing then detects
damage but keeps nothing secret, and at most ``KEYLESS_MAX`` connections are open at a time.

A connection carries payloads in one direction. A chunk is sent as two records: its header and its
data. Sealing copies a chunk, so a sealed chunk no longer needs the memory of the payload. The
receiver opens a record directly into its place in the payload, in a single pass.
"""

from __future__ import annotations

import resource
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gossip.core import PeerId
from gossip.errors import Malformed

from .assembly import ANYBODY, IncomingPayload, Reception
from .base import AGAIN_MAX_S, AGAIN_S, Arrival
from .chunks import CHUNK_BYTES, FIRST, FIRST_MARK, Outgoing, view_of
from .codec import HEADER_BYTES_MAX
from .curve import LinkParties
from .inbox import ListenAddress
from .lending import BufferPool
from .sessions import (
    CHUNK,
    HEADER,
    MESSAGE,
    OPEN,
    OVERHEAD,
    PROOF_BYTES,
    RECORD,
    WELCOME_BYTES,
    OpeningSession,
    RecordOpener,
    RecordSealer,
    SessionOffer,
    make_welcome,
    session_of,
)
from .sockets import HANDSHAKE_S, address_of, bulk_options, host_and_port, listen

UNPROVEN_MAX = 128
OF_A_PEER_MAX = 2
"""Maximum number of connections of a peer with a key: one in use, and one that remains from a
former incarnation or a cut."""
KEYLESS_MAX = 1024
"""Maximum number of connections in a run without keys, in which a session does not identify a peer.
A quarter of the process's limit of open files is a second maximum, because each linked peer uses
nine files."""
OFFERS_MAX = 1024
ACCEPTS = 64  # Maximum number of connections to accept before other work.
BURST_BYTES = 2**20  # Number of bytes to read before the control lane is served.
BURST_READS = 256

_HEADER_MAX = FIRST.size + HEADER_BYTES_MAX
_CHUNK_ROOM = OVERHEAD + max(CHUNK_BYTES, _HEADER_MAX)
_SEALED_ROOM = _HEADER_MAX + CHUNK_BYTES + 2 * OVERHEAD
_SMALL_BYTES = 1024
_SEND = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class SealedLane:
    """Outgoing bulk lane to one peer (``links.BulkLane``).

    Args:
        offer: Sends a frame to the same peer over the control lane. It returns False if the control
            lane is not connected; this lane then does not connect either.
    """

    def __init__(self, address: str, parties: LinkParties, offer: Callable[[bytes], bool]) -> None:
        self.address = address
        self.chunk_bytes, self.up = CHUNK_BYTES, False
        self._parties, self._offer = parties, offer
        self._news, self._room = select.epoll(), select.epoll()
        self.news_fd, self.room_fd = self._news.fileno(), self._room.fileno()
        self._socket: socket.socket | None = None
        self._session: OpeningSession | None = None
        self._sealer: RecordSealer | None = None
        self._opened = False  # whether the name of the session was sent on the connection
        self._welcome = b""
        self._unsent: memoryview | None = None  # rest of a sealed chunk that was sent in part
        self._failures, self._not_before, self._give_up_at = 0, 0.0, 0.0

    # --- the connection ---------------------------------------------------------------------------

    @property
    def again_s(self) -> float | None:
        return AGAIN_S if self._socket is None else None

    def retry(self) -> bool:
        if self.up:
            return True
        now = time.monotonic()
        if self._socket is not None and now >= self._give_up_at:
            self._end()
        if self._socket is None and now >= self._not_before:
            self._begin(now)
        return False

    def _begin(self, now: float) -> None:
        """Offer a new session and open a connection for it. Each connection has its own session, so
        a record is valid on only one connection."""
        parties = self._parties
        public = "" if parties.pair is None else parties.pair.public
        session = OpeningSession(public, parties.other, parties.incarnation())
        if not self._offer(session.offer.encode()):
            return  # the control lane is not connected
        host, port = host_and_port(self.address)
        try:
            end = socket.socket(
                socket.AF_INET6 if ":" in host else socket.AF_INET,
                socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
            )
        except OSError:
            return  # no descriptor is free now; a later call tries again
        bulk_options(end)
        end.connect_ex((host, port))  # ``news`` detects the outcome
        self._socket, self._session = end, session
        self._opened, self._welcome = False, b""
        self._give_up_at = now + HANDSHAKE_S
        self._news.register(end.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def news(self) -> list[bool]:
        if self._socket is None:
            return []
        try:
            return self._advance(self._socket)
        except BlockingIOError:
            return []
        except (OSError, Malformed):
            return self._end()

    def _advance(self, end: socket.socket) -> list[bool]:
        """Continue the handshake. Raises: BlockingIOError: Nothing has arrived. OSError, Malformed:
        The connection has ended, or the other side is not the expected peer."""
        assert self._session is not None, "it comes with the socket"
        if not self._opened:
            _send_all(end, self._session.opening)
            self._opened = True
            self._news.modify(end.fileno(), select.EPOLLIN)
            return []
        data = end.recv(WELCOME_BYTES)
        if not data or self.up:
            raise ConnectionError("the connection has ended, or the receiver has sent data")
        self._welcome += data
        if len(self._welcome) < WELCOME_BYTES:
            return []
        self._sealer = self._session.welcomed(self._welcome)
        _send_all(end, self._sealer.proof())
        self._room.register(end.fileno(), select.EPOLLOUT)
        self.up, self._failures = True, 0
        return [True]

    def _end(self) -> list[bool]:
        """Close the connection. The receiver can still read the bytes that were sent."""
        assert self._socket is not None
        self._socket.close()
        news = [False] if self.up else []
        self._socket = self._session = self._sealer = self._unsent = None
        self.up = False
        self._not_before = time.monotonic() + min(AGAIN_MAX_S, AGAIN_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 10)
        return news

    def close(self, linger_ms: int = 0) -> None:
        if self._socket is not None:
            self._end()
        self._news.close()
        self._room.close()

    # --- payloads ---------------------------------------------------------------------------------

    def push(self, outgoing: Outgoing) -> bool:
        """Send the next chunk of ``outgoing``. Return False if the kernel has not accepted the
        whole chunk. The next call sends the rest, and must be for the same message."""
        end = self._socket
        if end is None or self._sealer is None:
            return False
        unsent = self._unsent
        if unsent is None:
            unsent = self._sealed(outgoing, self._sealer)
        try:
            while unsent:
                unsent = unsent[end.send(unsent, _SEND) :]
        except OSError:  # no room, or the connection has ended, which ``news`` will report
            self._unsent = unsent
            return False
        self._unsent = None
        return True

    def _sealed(self, outgoing: Outgoing, sealer: RecordSealer) -> memoryview:
        header, chunk = outgoing.frames()
        room = view_of(self._parties.rooms.allocate(_SEALED_ROOM))
        if chunk is None:
            return room[: sealer.seal_into(MESSAGE, header, room)]
        end = sealer.seal_into(HEADER, header, room)
        return room[: end + sealer.seal_into(CHUNK, chunk, room[end:])]


def _send_all(end: socket.socket, data: bytes) -> None:
    """Send a few bytes on a connection, which has room for them because it is new. Raises:
    OSError."""
    if end.send(data, _SEND) != len(data):
        raise ConnectionError("the connection has no room")


class SealedStream:
    """Parser of the data of one connection that has proved its session. It converts bytes to
    messages and needs no socket.

    Args:
        connection, owner: Serial number of the connection, and the peer that sends on it.
        rooms: Buffers for sealed chunks.
    """

    def __init__(
        self,
        opener: RecordOpener,
        reception: Reception,
        connection: int,
        owner: PeerId,
        rooms: BufferPool,
    ) -> None:
        self._opener, self._reception, self._rooms = opener, reception, rooms
        self._traffic = reception.traffic
        self._connection, self._owner = connection, owner
        self._small = self._view = memoryview(bytearray(_SMALL_BYTES))
        self._filled, self._need = 0, RECORD.size
        self._awaits_chunk = False
        self._incoming: IncomingPayload | None = None  # None if the next chunk will be dropped

    def room(self) -> memoryview:
        """Return the memory into which the next bytes must be read."""
        return self._view[self._filled : self._need]

    def grow(self, nbytes: int, now: float) -> list[Arrival]:
        """Process ``nbytes`` further bytes in ``room``. Raises: Malformed: The bytes are not
        authentic. The caller must close the connection."""
        self._filled += nbytes
        if self._filled < self._need:
            return []
        if self._need == RECORD.size:
            self._make_room(*RECORD.unpack_from(self._view))
            return []
        record = self._view[: self._need]
        kind, length = RECORD.unpack_from(record)
        arrivals = (
            self._read_chunk(record, length, now)
            if kind == CHUNK
            else self._read_header(record, kind, length, now)
        )
        self._traffic.received_bytes += length
        self._view, self._filled, self._need = self._small, 0, RECORD.size
        return arrivals

    def _make_room(self, kind: int, length: int) -> None:
        """Allocate memory for the record that a head announces. The head is not authenticated yet,
        so its kind and its length are checked: they must be as expected or within bounds."""
        if self._awaits_chunk:
            wanted = self._wanted()
            right = kind == CHUNK and (
                0 < length <= CHUNK_BYTES if wanted is None else length == len(wanted.room())
            )
        else:
            right = kind in (MESSAGE, HEADER) and 0 < length <= _HEADER_MAX
        if not right:
            raise Malformed("a record of an unexpected kind or length")
        self._need = length + OVERHEAD
        if self._need > _SMALL_BYTES:
            self._view = view_of(self._rooms.allocate(_CHUNK_ROOM))
            self._view[: RECORD.size] = self._small[: RECORD.size]

    def _wanted(self) -> IncomingPayload | None:
        """Return the payload to which the next chunk belongs; None if the payload was rejected or
        dropped."""
        incoming = self._incoming
        return None if incoming is None or incoming.dropped else incoming

    def _read_header(self, record: memoryview, kind: int, length: int, now: float) -> list[Arrival]:
        header = memoryview(bytearray(length))
        self._opener.open_into(record[: RECORD.size], record[RECORD.size :], header)
        # A payload counts as one message, so its later chunks are not counted.
        self._traffic.received_messages += kind == MESSAGE or header[0] == FIRST_MARK
        if kind == HEADER:
            self._incoming = self._reception.chunk(self._connection, header, now, self._owner)
            self._awaits_chunk = True
            return []
        received = self._reception.plain(header, self._owner)
        return [] if received is None else [received]

    def _read_chunk(self, record: memoryview, length: int, now: float) -> list[Arrival]:
        incoming = self._wanted()
        self._incoming, self._awaits_chunk = None, False
        if incoming is None:
            self._opener.pass_over()
            return []
        self._opener.open_into(record[: RECORD.size], record[RECORD.size :], incoming.room())
        received = self._reception.filled(self._connection, incoming, True)
        return [*incoming.news(now)] if received is None else [received]


@dataclass(eq=False)
class _Connection:
    """Accepted connection. First its session and its owner are unknown, then it names a session,
    and then it proves the session."""

    end: socket.socket
    serial: int
    host: str
    until: float

    def __post_init__(self) -> None:
        self.begun = bytearray(OPEN.size)
        self.filled = 0
        self.session: bytes | None = None
        """Session that the connection has named; None before."""
        self.opener: RecordOpener | None = None
        self.owner: tuple[PeerId, str] | None = None
        """Peer that offered the session, and the key of this peer; None before the welcome."""
        self.stream: SealedStream | None = None

    def close(self) -> None:
        self.end.close()


def _oldest_of_most(connections: list[_Connection]) -> _Connection:
    """Return the oldest connection of the host with most connections. If several hosts have the
    most, choose the host of the latest connection."""
    counts = Counter(one.host for one in connections)
    most = max((one.host for one in reversed(connections)), key=counts.__getitem__)
    return next(one for one in connections if one.host == most)


class SealedInbox:
    """Receiver of the payloads of all peers. It has a listening socket, the sessions that peers
    have offered, and the accepted connections. One epoll descriptor signals all of them."""

    def __init__(
        self, where: ListenAddress, reception: Reception, incarnation: Callable[[], int]
    ) -> None:
        """Listen at ``where``. Raises: ConfigError, AddressInUse."""
        self._keys = None if where.guard is None else where.guard.keys
        self._incarnation = incarnation
        self.reception, self._traffic = reception, reception.traffic
        self._rooms = BufferPool()
        self._listener = listen(where.host, where.port, where.anywhere)
        self.address = address_of(self._listener)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self.fd: int = self._epoll.fileno()
        self._offers: dict[bytes, tuple[PeerId, str, SessionOffer]] = {}
        self._connections: dict[int, _Connection] = {}
        # Descriptor -> connection that has not proved its session, oldest first.
        self._unproven: dict[int, _Connection] = {}
        self._serial = 0
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._keyless_max = KEYLESS_MAX if files < 0 else min(KEYLESS_MAX, files // 4)

    def offered(self, owner: PeerId, frame: bytes) -> None:
        """Store a session that ``owner`` has offered over the control lane, for the owner's next
        connection. If the owner has a key, the new offer replaces its older offer."""
        try:
            offer = SessionOffer.decode(frame)
        except Malformed:
            self._traffic.drop("malformed")
            return
        key = "" if self._keys is None else self._keys.key_of(owner)
        if key is None:
            return  # the key was revoked in the meantime
        if owner != ANYBODY:
            self._forget_offers(lambda known, _: known == owner)
        elif len(self._offers) >= OFFERS_MAX:
            del self._offers[next(iter(self._offers))]
        self._offers[offer.session] = owner, key, offer
        for connection in list(self._unproven.values()):
            if connection.session == offer.session and connection.opener is None:
                self._welcome(connection)

    def _forget_offers(self, which: Callable[[PeerId, str], bool]) -> None:
        for session, (owner, key, _) in list(self._offers.items()):
            if which(owner, key):
                del self._offers[session]

    def read(self, arrivals: list[Arrival], now: float) -> bool:
        """Read arrivals up to a limit, so that other lanes do not wait too long. If data remain,
        the descriptor stays readable."""
        stop_at = self._traffic.received_bytes + BURST_BYTES
        for fd, _ in self._epoll.poll(0):
            connection = self._connections.get(fd)
            if fd == self._listener.fileno():
                self._accept(now)
            elif connection is not None:
                self._drain(connection, arrivals, now, stop_at)
        for connection in [one for one in self._unproven.values() if one.until <= now]:
            self._turn_away(connection)
        return True

    # --- new connections --------------------------------------------------------------------------

    def _accept(self, now: float) -> None:
        for _ in range(ACCEPTS):
            try:
                end, address = self._listener.accept()
            except OSError:
                return  # there is no further connection, or the client has already closed it
            end.setblocking(False)
            bulk_options(end)
            self._serial += 1
            connection = _Connection(end, self._serial, address[0], now + HANDSHAKE_S)
            self._connections[end.fileno()] = self._unproven[end.fileno()] = connection
            self._epoll.register(end.fileno(), select.EPOLLIN)
            self._make_way()

    def _make_way(self) -> None:
        """Close a connection if too many connections have not named an offered session. If there
        are no keys, an offered session does not identify a peer, so the total number of connections
        is limited, too."""
        strangers = [one for one in self._unproven.values() if one.opener is None]
        if len(strangers) > UNPROVEN_MAX:
            self._turn_away(_oldest_of_most(strangers))
        elif self._keys is None and len(self._connections) > self._keyless_max:
            self._traffic.drop("crowded")
            self._close(_oldest_of_most(list(self._connections.values())))

    def _open(self, connection: _Connection) -> None:
        """Process the session that a connection has named."""
        connection.session = session_of(connection.begun)
        if connection.session in self._offers:
            self._welcome(connection)
        else:  # the offer may be in transit: read nothing until it arrives
            self._epoll.modify(connection.end.fileno(), 0)

    def _welcome(self, connection: _Connection) -> None:
        """Send the welcome on a connection that has named an offered session. Remove the offer,
        because a session can be used only once."""
        assert connection.session is not None
        owner, key, offer = self._offers.pop(connection.session)
        public = "" if self._keys is None else self._keys.pair.public
        welcome, connection.opener = make_welcome(offer, key, public, self._incarnation())
        connection.owner = owner, key
        connection.begun, connection.filled = bytearray(PROOF_BYTES), 0
        try:
            _send_all(connection.end, welcome)
            self._epoll.modify(connection.end.fileno(), select.EPOLLIN)
        except OSError:
            self._turn_away(connection)

    def _admit(self, connection: _Connection) -> None:
        """Verify the proof of a connection's session, and admit the connection. Raises: Malformed:
        The proof is invalid."""
        assert connection.opener is not None
        assert connection.owner is not None
        connection.opener.open_proof(memoryview(connection.begun))
        owner, _ = connection.owner
        del self._unproven[connection.end.fileno()]
        connection.stream = SealedStream(
            connection.opener, self.reception, connection.serial, owner, self._rooms
        )
        if owner != ANYBODY:
            own = [
                one
                for one in self._connections.values()
                if one.stream and one.owner == connection.owner
            ]
            for old in own[:-OF_A_PEER_MAX]:
                self._close(old)

    def _turn_away(self, connection: _Connection) -> None:
        self._traffic.drop("bad_handshake")
        self._close(connection)

    # --- incoming data ----------------------------------------------------------------------------

    def _drain(
        self, connection: _Connection, arrivals: list[Arrival], now: float, stop_at: int
    ) -> None:
        for _ in range(BURST_READS):
            try:
                if not self._read_some(connection, arrivals, now):
                    return
            except BlockingIOError:
                return
            except OSError:
                self._close(connection)
                return
            except Malformed:
                if connection.stream is None:
                    self._turn_away(connection)
                else:
                    self._traffic.drop("bad_record")
                    self._close(connection)
                return
            if self._traffic.received_bytes >= stop_at:
                return

    def _read_some(self, connection: _Connection, arrivals: list[Arrival], now: float) -> bool:
        """Read some bytes of a connection and process them. Return whether to read again now.
        Raises: BlockingIOError: Nothing has arrived. OSError: The connection has ended. Malformed:
        The bytes are invalid."""
        stream = connection.stream
        room = (
            memoryview(connection.begun)[connection.filled :] if stream is None else stream.room()
        )
        got = connection.end.recv_into(room)
        if not got:
            raise ConnectionError("the connection has ended")
        if stream is not None:
            come = stream.grow(got, now)
            arrivals += come
            # After a message there are usually no more data. If there are, the descriptor stays
            # readable.
            return not come
        connection.filled += got
        if connection.filled == len(connection.begun):
            if connection.opener is None:
                self._open(connection)
                return connection.opener is not None
            self._admit(connection)
        return True

    # --- end --------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Close the connections of peers with revoked keys. Only valid in a run with keys."""
        keys = self._keys
        assert keys is not None
        self._forget_offers(lambda owner, key: keys.peer_of(key) != owner)
        for connection in list(self._connections.values()):
            if (
                connection.owner is not None
                and keys.peer_of(connection.owner[1]) != connection.owner[0]
            ):
                self._close(connection)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.end.fileno()]
        self._unproven.pop(connection.end.fileno(), None)
        connection.close()
        self.reception.closed(connection.serial)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()
        self._listener.close()
