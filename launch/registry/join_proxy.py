"""Proxy between the network and a join server's ZeroMQ socket. It limits the bytes per connection.

libzmq stores the parts of a message until the last part has arrived, and no option limits the
number of parts. The size limit is per part, and high-water marks count whole messages. So 58 MB of
empty parts need 1.8 GB of memory. Therefore no peer connects directly to the ZeroMQ socket of a
join server, which is a unix socket of this user. TCP connections end at the proxy, which counts
their frames and bytes, encrypted or not. A connection carries one request, so small limits are
enough. The proxy closes a connection that exceeds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import zmq
import zmq.asyncio

from .join_messages import MESSAGE_BYTES_MAX

FRAMES_MAX = 8
"""Maximum number of frames of a connection: at most two for the handshake, two for a request."""
# a message, the handshake, and the overhead of CURVE per frame
BYTES_MAX = MESSAGE_BYTES_MAX + 16 * 1024
VISITORS_MAX = 128
"""Maximum number of connections at a time. A connection needs three descriptors."""
HELD_BYTES_MAX = 16 * 2**20
"""Maximum bytes of all open connections together. Most requests are smaller than a kilobyte. Beyond
the maximum, a connection with more bytes than an equal share is closed."""
VISIT_S = 10.0  # No client waits longer for a reply.
NO_DESCRIPTORS_S = 0.2  # pause until descriptors may be free again
CHUNK_BYTES = 64 * 1024

_GREETING_BYTES = 64
_SIGNATURE_FIRST, _SIGNATURE_LAST_AT, _VERSION_AT, _VERSION = 0xFF, 9, 10, 3
_LARGE = 2


class LimitExceeded(Exception):
    """The remote side has sent more data than a request may have, or does not use ZMTP 3."""


class HeldBytes:
    """Number of bytes that all open connections of a join server have received."""

    def __init__(self) -> None:
        self.bytes = 0


class FrameMeter:
    """Counts frames and bytes of one direction of a connection (ZMTP 3: RFC 23). An encrypted frame
    is contained in a plain frame, so no key is needed."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.bytes = self.frames = 0
        self._head = bytearray()  # bytes so far of the greeting, or of the header of a frame
        self._greeted = False
        self._body_left = self._announced = 0

    def count_bytes(self, data: bytes) -> None:
        """Count received bytes. Raises: LimitExceeded."""
        self.bytes += len(data)
        self._held.bytes += len(data)
        too_large = (
            self._held.bytes > HELD_BYTES_MAX and self.bytes > HELD_BYTES_MAX // VISITORS_MAX
        )
        if self.bytes > BYTES_MAX or too_large:
            raise LimitExceeded
        at = 0
        while at < len(data):
            skip = min(self._body_left, len(data) - at)
            at, self._body_left = at + skip, self._body_left - skip
            wanted = self._head_bytes() - len(self._head)
            self._head += data[at : at + wanted]
            at += wanted
            if len(self._head) == self._head_bytes():
                self._read_head()

    @property
    def is_zmtp(self) -> bool:
        """Whether the data so far begins like a ZMTP greeting. The rest of it may never arrive: if
        the security mechanisms differ, libzmq closes the connection as soon as it has read the
        greeting of the local side."""
        return self._greeted or _has_signature(self._head)

    def release_bytes(self) -> None:
        """Subtract the bytes of an ended connection from the total."""
        self._held.bytes -= self.bytes
        self.bytes = 0

    def _head_bytes(self) -> int:
        if not self._greeted:
            return _GREETING_BYTES
        return 9 if self._head and self._head[0] & _LARGE else 2

    def _read_head(self) -> None:
        head = bytes(self._head)
        self._head.clear()
        if not self._greeted:
            # Older versions of ZMTP have another framing, so the number of frames would be wrong.
            if not _has_signature(head) or head[_VERSION_AT] < _VERSION:
                raise LimitExceeded
            self._greeted = True
            return
        self.frames += 1
        self._body_left = int.from_bytes(head[1:], "big")
        self._announced += self._body_left
        if self.frames > FRAMES_MAX or self._announced > BYTES_MAX:
            raise LimitExceeded


def _has_signature(greeting: bytes | bytearray) -> bool:
    return (
        len(greeting) > _SIGNATURE_LAST_AT
        and greeting[0] == _SIGNATURE_FIRST
        and bool(greeting[_SIGNATURE_LAST_AT] & 1)
    )


def bind_inside(inside: zmq.Socket[bytes]) -> str:
    """Bind ``inside`` to a unix socket that only this user can reach. Return its abstract name."""
    name = f"gossip-door-{secrets.token_hex(16)}"
    inside.set(zmq.IPC_FILTER_UID, os.getuid())
    inside.bind(f"ipc://@{name}")
    return name


async def pass_on(outside: socket.socket, inside: socket.socket, meter: FrameMeter) -> bool:
    """Forward bytes between two connections until one of them ends, and close both. ``meter``
    counts the bytes from outside.

    Returns: Whether the remote side closed the connection after it had begun its greeting.
    Raises: LimitExceeded.
    """
    ends: list[asyncio.StreamWriter] = []
    pumps: list[asyncio.Task[None]] = []
    try:
        from_outside, to_outside = await asyncio.open_connection(sock=outside)
        ends.append(to_outside)
        from_inside, to_inside = await asyncio.open_connection(sock=inside)
        ends.append(to_inside)
        pumps = [
            asyncio.create_task(_pump(from_outside, to_inside, meter)),
            asyncio.create_task(_pump(from_inside, to_outside, None)),
        ]
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        to_outside.close()
        with contextlib.suppress(OSError):
            await to_outside.wait_closed()  # Send the last bytes first.
        for pump in done:
            pump.result()
        return pumps[0] in done and meter.is_zmtp
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in ends:
            end.transport.abort()
        outside.close()
        inside.close()


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, meter: FrameMeter | None
) -> None:
    with contextlib.suppress(OSError):  # If one side has closed, the caller closes the other side.
        while data := await source.read(CHUNK_BYTES):
            if meter is not None:
                meter.count_bytes(data)
            sink.write(data)
            await sink.drain()


@dataclass(slots=True)
class _ProxiedConnection:
    """One connection from outside. ``host``: address of the remote host."""

    host: str
    task: asyncio.Task[None]


class Proxy:
    """Accepts the connections to a join server, and stores the address of their remote hosts.

    Args:
        listener: A listening, non-blocking socket. The proxy becomes its owner.
        inside: Name of the join server's ZeroMQ socket, from ``bind_inside``.
    """

    def __init__(self, listener: socket.socket, inside: str) -> None:
        self._listener, self._inside = listener, inside
        # connections from outside by the name of their inner connection, oldest first
        self._visits: dict[str, _ProxiedConnection] = {}
        self._numbers = itertools.count()
        self._held = HeldBytes()
        self.cut = 0  # number of connections closed because of a limit

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                outside, address = await loop.sock_accept(self._listener)
            except OSError:
                # No descriptors are left, or the client has closed: open connections end by
                # themselves.
                await asyncio.sleep(NO_DESCRIPTORS_S)
                continue
            name = f"{self._inside}.{next(self._numbers)}"
            task = asyncio.create_task(self._receive(outside, name, FrameMeter(self._held)))
            self._visits[name] = _ProxiedConnection(str(address[0]), task)
            await self._make_room()
            # Yield to other tasks: an accept that does not block never does.
            await asyncio.sleep(0)

    async def _receive(self, outside: socket.socket, name: str, meter: FrameMeter) -> None:
        inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inside.setblocking(False)
            inside.bind(f"\0{name}")
            async with asyncio.timeout(VISIT_S):
                await asyncio.get_running_loop().sock_connect(inside, f"\0{self._inside}")
                await pass_on(outside, inside, meter)
        except LimitExceeded:
            self.cut += 1
        except (TimeoutError, OSError):
            pass  # The connection timed out or was closed.
        finally:
            outside.close()
            inside.close()
            meter.release_bytes()
            self._visits.pop(name, None)

    async def _make_room(self) -> None:
        """Close connections until their number is within the limit. Each time, close the oldest
        connection of the host that has the most connections."""
        while len(self._visits) > VISITORS_MAX:
            most = Counter(visit.host for visit in self._visits.values()).most_common(1)[0][0]
            oldest = next(visit for visit in self._visits.values() if visit.host == most)
            self.cut += 1
            await _cancelled([oldest.task])

    def host_of(self, frame: zmq.Frame) -> str:
        """Return the address of the host that sent a message; "" if its connection has ended."""
        try:
            with socket.socket(fileno=os.dup(frame.get(zmq.SRCFD))) as end:
                name = end.getpeername()
        except (OSError, zmq.ZMQError):
            return ""
        visit = (
            self._visits.get(name[1:].decode("ascii", "replace"))
            if isinstance(name, bytes)
            else None
        )
        return visit.host if visit is not None else ""

    async def close(self) -> None:
        self._listener.close()
        await _cancelled([visit.task for visit in self._visits.values()])


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
