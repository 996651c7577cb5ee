"""Bulk lane between peers on one host: Unix sockets, which need no I/O thread.

A packet is ``[length of the header][header][chunk]``, with the headers of ``chunks``. Socket names
are abstract, so no file remains. The kernel reports the user at the other end, and other users are
rejected. A large payload in shared memory of its sender is not sent (``lending``). The receiver
maps the memory, copies the payload block by block, and then sends a report. A receiver sends
nothing else on a connection.
"""

from __future__ import annotations

import array
import contextlib
import os
import re
import secrets
import select
import socket
import struct

from gossip.core import Received
from gossip.errors import AddressInUse, ConfigError
from gossip.vectors import ByteArray

from .assembly import Loan, Reception
from .base import Arrival
from .chunks import (
    COPIED,
    FIRST,
    FIRST_MARK,
    LENT,
    LENT_MARK,
    MAP_MARK,
    NEXT,
    NEXT_MARK,
    RETURNED_MARK,
    UNMAPPED,
    Outgoing,
)
from .codec import HEADER_BYTES_MAX
from .lending import Lender, MappedMemory

CHUNK_BYTES = 128 * 1024
"""Size of a chunk in bytes. A packet must fit in the buffer of the socket, which Linux limits to
208 KiB by default."""
BUFFER_BYTES = 212_992
CONNECTIONS_MAX = 4096
BACKLOG = 1024
BURST_BYTES = 2**20  # number of bytes to read before the control lane is served
BURST_PACKETS = 256
LOAN_BURST_BYTES = 2**22  # bytes to copy from shared memory at a time; this takes 1 ms

_LENGTH = struct.Struct("<I")
_HEADER_MAX = _LENGTH.size + max(FIRST.size, LENT.size) + HEADER_BYTES_MAX
RETURNS_MAX = 256  # Number of reports of one lane to read before other lanes are served.
_PEEK_BYTES = 1024  # Nearly all headers are shorter.
_ADDRESS = re.compile(r"unix://@(gossip-[0-9a-f]{8,64})", re.ASCII)
_KIND = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_CREDENTIALS = struct.Struct("3i")
# The flags are converted to int, because ``|`` and ``&`` take 2 us each on enums.
_SEND = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_PEEK = int(socket.MSG_PEEK)
_TRUNCATED = int(socket.MSG_TRUNC)
_RECEIVE = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTOR_BYTES)
_RETURN_LENGTH = _LENGTH.pack(NEXT.size)


def name_of(address: str) -> str | None:
    """Return the abstract name in an address of this lane. Return None if ``address``, which may
    come from another peer, is not such an address."""
    match = _ADDRESS.fullmatch(address)
    return None if match is None else match[1]


def _user_at(other_end: socket.socket) -> int:
    _, user, _ = _CREDENTIALS.unpack(
        other_end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(user)


class UnixLane:
    """Outgoing bulk lane to one peer (``links.BulkLane``).

    A broken connection must be opened again with ``retry``. ``news_fd`` and ``room_fd`` stay the
    same.
    """

    def __init__(self, address: str) -> None:
        name = name_of(address)
        assert name is not None, address
        self._name = name
        self._socket: socket.socket | None = None
        self._news, self._room = select.epoll(), select.epoll()
        self.news_fd, self.room_fd = self._news.fileno(), self._room.fileno()
        self.chunk_bytes, self.up = CHUNK_BYTES, False
        self._lender: Lender | None = None
        self._region, self._shown = 0, False
        # Transfer -> envelope and payload of a message, until the receiver has copied the payload.
        self._lent: dict[int, tuple[bytes, ByteArray]] = {}
        self._declined: list[Outgoing] = []

    def share(self, lender: Lender) -> None:
        """Share the lender's memory with the receiver. Large payloads in this memory are no longer
        sent."""
        self._lender, self._shown = lender, False
        self._region += 1

    def declined(self) -> list[Outgoing]:
        """Return the messages to send again with their payloads, because the receiver cannot map
        the memory of the payloads. No further memory is lent to this receiver."""
        declined, self._declined = self._declined, []
        return declined

    def lend(self, envelope: bytes, holder: ByteArray) -> Outgoing | None:
        """Return a message with a payload that the receiver reads in shared memory. Return None if
        the payload is not in shared memory, or is so small that sending it is faster."""
        if self._lender is None or len(holder) <= CHUNK_BYTES:
            return None
        offset = self._lender.offset_of(holder)
        return None if offset is None else Outgoing.lending(envelope, holder, self._region, offset)

    @property
    def again_s(self) -> float | None:
        return 0.0 if self._socket is None else None

    def retry(self) -> bool:
        """Try to connect. Return False if the peer does not listen yet, if another user listens, or
        if no descriptor is free. A later call may succeed."""
        try:
            end = socket.socket(socket.AF_UNIX, _KIND)
        except OSError:
            return False
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            end.connect(f"\0{self._name}")
        except OSError:
            end.close()
            return False
        if _user_at(end) != os.getuid():
            end.close()
            return False
        self._socket = end
        self._room.register(end.fileno(), select.EPOLLOUT)
        # The socket has room, so ``news_fd`` is readable at once, and ``news`` reports the
        # connection.
        self._news.register(end.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return True

    def news(self) -> list[bool]:
        end = self._socket
        if end is None:
            return []
        news = []
        if not self.up:
            self.up = True
            self._news.modify(end.fileno(), select.EPOLLIN)
            news.append(True)
        if self._read_returns(end):
            end.close()
            self._socket, self.up, self._shown = None, False, False
            self._lent.clear()
            self._declined.clear()
            news.append(False)
        return news

    def _read_returns(self, end: socket.socket) -> bool:
        """Read the receiver's reports about payloads. Return whether the receiver has closed the
        connection.

        A report either returns a lent payload or declines it. If a Byzantine receiver returns a
        payload too early, it damages only the payloads that it receives itself.
        """
        for _ in range(RETURNS_MAX):
            try:
                packet = end.recv(_LENGTH.size + NEXT.size, _SEND)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not packet:
                return True
            if len(packet) == _LENGTH.size + NEXT.size:
                mark, transfer, how = NEXT.unpack_from(packet, _LENGTH.size)
                known = self._lent.pop(transfer, None) if mark == RETURNED_MARK else None
                if known is not None and how == UNMAPPED:
                    self._lender = None
                    self._declined.append(Outgoing(*known, chunk_bytes=CHUNK_BYTES))
        return False

    def _show(self, end: socket.socket) -> None:
        """Send the descriptor of the shared memory to the receiver, once for each connection.
        Raises: OSError: No room, or the connection has ended."""
        if self._lender is not None and not self._shown:
            header = NEXT.pack(MAP_MARK, self._region, 0)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._lender.fd]))
            end.sendmsg((_LENGTH.pack(len(header)), header), (rights,), _SEND)
            self._shown = True

    def push(self, outgoing: Outgoing) -> bool:
        if self._socket is None:
            return False
        header, chunk = outgoing.frames()
        parts = (
            (_LENGTH.pack(len(header)), header)
            if chunk is None
            else (_LENGTH.pack(len(header)), header, chunk)
        )
        try:
            if outgoing.lent:
                self._show(self._socket)
            self._socket.sendmsg(parts, (), _SEND)
        except OSError:  # no room, or the connection has ended, which ``news`` will report
            return False
        if outgoing.lent and outgoing.holder is not None:
            self._lent[outgoing.transfer] = header[LENT.size :], outgoing.holder
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Close the lane. The receiver can still read the bytes that were sent."""
        if self._socket is not None:
            self._socket.close()
        self._news.close()
        self._room.close()


class UnixInbox:
    """Receiver of the payloads of all peers. It has a listening socket and the accepted
    connections. One epoll descriptor signals all of them."""

    def __init__(self, reception: Reception, name: str = "") -> None:
        """Listen under ``name``, or under a random name if it is "". Raises: AddressInUse,
        ConfigError."""
        self.reception, self._traffic = reception, reception.traffic
        name = name or f"gossip-{secrets.token_hex(16)}"
        self.address = f"unix://@{name}"
        if name_of(self.address) is None:
            raise ConfigError(
                f"{name!r} is not a valid name to listen on", "leave it out: one is chosen"
            )
        self._listener = socket.socket(socket.AF_UNIX, _KIND)
        try:
            self._listener.bind(f"\0{name}")
            self._listener.listen(BACKLOG)
        except OSError as error:
            self._listener.close()
            raise AddressInUse(self.address, None) from error
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self.fd = self._epoll.fileno()
        # Descriptor -> serial number and socket.
        self._connections: dict[int, tuple[int, socket.socket]] = {}
        # Descriptor -> number and mapping of the sender's shared memory; descriptor -> payload
        # being copied.
        self._mapped: dict[int, tuple[int, MappedMemory]] = {}
        self._loans: dict[int, Loan] = {}
        self._serial = 0
        self._scratch = bytearray(_HEADER_MAX)
        self._view = memoryview(self._scratch)
        self._beyond = bytearray(_HEADER_MAX + 1)

    def read(self, arrivals: list[Arrival], now: float) -> bool:
        """Read arrivals up to a limit, so that other lanes do not wait too long. If data remain,
        the descriptor stays readable. Return False if a payload is still being copied, because the
        descriptor does not signal this."""
        stop_at = self._traffic.received_bytes + BURST_BYTES
        for fd in list(self._loans):
            self._copy(fd, arrivals, now)
        for fd, _ in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._connections and fd not in self._loans:
                self._drain(fd, arrivals, now, stop_at)
        return not self._loans

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # there is no further connection, or the client has already closed it
            if _user_at(connection) != os.getuid() or len(self._connections) >= CONNECTIONS_MAX:
                self._traffic.drop("stranger")
                connection.close()
                continue
            connection.setblocking(False)
            self._serial += 1
            self._connections[connection.fileno()] = (self._serial, connection)
            self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _drain(self, fd: int, arrivals: list[Arrival], now: float, stop_at: int) -> None:
        serial, connection = self._connections[fd]
        for _ in range(BURST_PACKETS):
            try:
                got = connection.recv_into(self._view, _PEEK_BYTES, _PEEK)
            except BlockingIOError:
                return
            except OSError:
                got = 0
            if not got:
                self._close(fd)
                return
            received = self._read_packet(serial, connection, got, now, arrivals)
            if received is not None:
                arrivals.append(received)
                return  # usually the last data; otherwise the descriptor stays readable
            if fd in self._loans:
                return  # later packets wait until the payload is copied, to keep the order
            if self._traffic.received_bytes >= stop_at:
                return

    def _read_packet(
        self, serial: int, connection: socket.socket, seen: int, now: float, arrivals: list[Arrival]
    ) -> Received | None:
        """Read one packet. ``seen``: number of its first bytes that are already in the scratch
        buffer."""
        end = _LENGTH.size + (
            _LENGTH.unpack_from(self._scratch)[0] if seen >= _LENGTH.size else _HEADER_MAX
        )
        if seen < end <= _HEADER_MAX:
            seen = connection.recv_into(self._view, end, _PEEK)
        if end > seen:
            self._traffic.drop("malformed")
            self._throw_away(connection)
            return None
        header = self._view[_LENGTH.size : end]
        mark = header[0] if header else 0
        if mark == MAP_MARK:
            self._map(connection, header)
            return None
        if mark == LENT_MARK:
            self._borrow(connection, header, end, now)
            return None
        if mark not in (FIRST_MARK, NEXT_MARK):
            self._traffic.received_messages += 1
            received = self.reception.plain(header)
            got = connection.recv_into(self._beyond, end + 1)
            self._traffic.received_bytes += got - _LENGTH.size
            if got != end:
                self._traffic.drop("malformed")
                return None
            return received
        # A payload counts as one message, so its later chunks are not counted.
        self._traffic.received_messages += mark == FIRST_MARK
        incoming = self.reception.chunk(serial, header, now)
        if incoming is None:
            self._throw_away(connection)
            return None
        room = incoming.room()
        got, _, flags, _ = connection.recvmsg_into([self._view[:end], room])
        self._traffic.received_bytes += got - _LENGTH.size
        received = self.reception.filled(
            serial, incoming, got == end + len(room) and not flags & _TRUNCATED
        )
        if received is None:
            arrivals += incoming.news(now)
        return received

    def _map(self, connection: socket.socket, header: memoryview) -> None:
        """Read the packet with a descriptor, and map its memory. It replaces the memory that was
        mapped for this connection before."""
        right = len(header) == NEXT.size
        region = NEXT.unpack(header)[1] if right else 0
        _, ancillary, flags, _ = connection.recvmsg_into([self._beyond], _ANCILLARY_BYTES, _RECEIVE)
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
        try:
            # MSG_CTRUNC means that more than one descriptor was sent, and the kernel has dropped
            # the rest.
            if not right or len(fds) != 1 or flags & socket.MSG_CTRUNC:
                raise OSError("expected one descriptor")
            self._mapped[connection.fileno()] = region, MappedMemory(fds[0])
        except (OSError, ValueError, OverflowError):
            self._traffic.drop("malformed")
            self._mapped.pop(connection.fileno(), None)
        finally:
            for fd in fds:
                os.close(fd)

    def _borrow(self, connection: socket.socket, header: memoryview, end: int, now: float) -> None:
        """Read a message with a payload in shared memory of the sender. If the payload cannot be
        read, report it to the sender at once."""
        self._traffic.received_messages += 1
        if not LENT.size < len(header) <= LENT.size + HEADER_BYTES_MAX:
            self._traffic.drop("malformed")
            self._throw_away(connection)
            return
        fd = connection.fileno()
        serial = self._connections[fd][0]
        transfer, loan = self.reception.lent((fd, serial), header, self._mapped.get(fd), now)
        got = connection.recv_into(self._beyond, end + 1)
        self._traffic.received_bytes += got - _LENGTH.size
        if got != end:
            self._traffic.drop("malformed")
            loan = None
        if loan is None:
            _return(connection, transfer, COPIED if fd in self._mapped else UNMAPPED)
        else:
            self._loans[fd] = loan

    def _copy(self, fd: int, arrivals: list[Arrival], now: float) -> None:
        """Copy the next part of a payload from the shared memory of its sender."""
        loan = self._loans[fd]
        incoming, stop_at = loan.incoming, loan.incoming.filled + LOAN_BURST_BYTES
        while incoming.filled < stop_at:
            before = incoming.filled
            done = incoming.copy_from(loan.source)
            self._traffic.received_bytes += incoming.filled - before
            if done:
                del self._loans[fd]
                if not incoming.stays_in(loan.source):
                    _return(self._connections[fd][1], loan.transfer, COPIED)
                arrivals.append(incoming.finish())
                return
        arrivals += incoming.news(now)

    def return_released(self) -> None:
        """Report to the senders which payloads in their shared memory are no longer in use here. A
        connection may have ended in the meantime."""
        let_go = self.reception.let_go
        while let_go:
            (fd, serial), transfer = let_go.popleft()
            known = self._connections.get(fd)
            if known is not None and known[0] == serial:
                _return(known[1], transfer, COPIED)

    def _throw_away(self, connection: socket.socket) -> None:
        """Drop a packet. Reading its first byte discards the whole packet."""
        connection.recv_into(self._beyond, 1)

    def _close(self, fd: int) -> None:
        serial, connection = self._connections.pop(fd)
        self._mapped.pop(fd, None)
        self._loans.pop(fd, None)
        self._epoll.unregister(fd)
        connection.close()
        self.reception.closed(serial)

    def close(self) -> None:
        for fd in list(self._connections):
            self._close(fd)
        self._epoll.close()
        self._listener.close()


def _return(connection: socket.socket, transfer: int, how: int) -> None:
    """Report to the sender whether its payload was copied, without waiting. If the sender does not
    read its reports, its memory stays in use until the connection ends."""
    with contextlib.suppress(OSError):
        connection.sendmsg((_RETURN_LENGTH, NEXT.pack(RETURNED_MARK, transfer, how)), (), _SEND)
