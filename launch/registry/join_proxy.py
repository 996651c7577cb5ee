"""Limits the bytes per connection: a proxy between the network and a join server's ZeroMQ socket.

libzmq keeps the parts of a message until the last of them has come, and no option limits their
number: 58 MB of empty parts become 1.8 GB (its size limit is per part, its high-water marks count
whole messages). So nobody connects to a join server's ZeroMQ socket directly. That socket is a unix
socket of this user. TCP connections end here, where frames and bytes are counted as they pass, with
keys as without. A connection carries one question, so little is enough. A connection that sends
more is closed.
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
"""Maximum number of frames of a connection: the handshake has two at most, a question two."""
BYTES_MAX = MESSAGE_BYTES_MAX + 16 * 1024  # the handshake, and what CURVE adds to a frame
VISITORS_MAX = 128
"""Connections at a time; each takes three descriptors."""
HELD_BYTES_MAX = 16 * 2**20
"""Maximum bytes of all open connections together: most questions have less than a kilobyte. Beyond
it, a connection with more than an equal part is closed."""
VISIT_S = 10.0  # nobody waits longer for an answer
NO_DESCRIPTORS_S = 0.2  # until some may be free again
CHUNK_BYTES = 64 * 1024

_GREETING_BYTES = 64
_SIGNATURE_FIRST, _SIGNATURE_LAST_AT, _VERSION_AT, _VERSION = 0xFF, 9, 10, 3
_LARGE = 2


class LimitExceeded(Exception):
    """The other side has sent more than a question has, or no ZMTP 3."""


class HeldBytes:
    """Bytes of all connections of a join server."""

    def __init__(self) -> None:
        self.bytes = 0


class FrameMeter:
    """Counts frames and bytes of one direction of a connection (ZMTP 3: RFC 23). Encrypted frames
    have a plain frame around."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.bytes = self.frames = 0
        self._head = bytearray()  # of the greeting, or of a frame
        self._greeted = False
        self._body_left = self._announced = 0

    def count_bytes(self, data: bytes) -> None:
        """Raises: LimitExceeded."""
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
        """Whether what came so far begins as a greeting. The rest of it may never come: libzmq ends
        a connection whose mechanism is not its own as soon as it has read the other's greeting."""
        return self._greeted or _has_signature(self._head)

    def release_bytes(self) -> None:
        """The connection is over."""
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
            # In the framing of older versions frames would be counted wrongly.
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
    """Binds a socket where only this proxy's user reaches it.
    Returns the abstract name of that place."""
    name = f"gossip-door-{secrets.token_hex(16)}"
    inside.set(zmq.IPC_FILTER_UID, os.getuid())
    inside.bind(f"ipc://@{name}")
    return name


async def pass_on(outside: socket.socket, inside: socket.socket, meter: FrameMeter) -> bool:
    """Between two connections until either ends. Both are closed then. ``meter``:
    of what comes from outside.

    Returns: Whether the outside has ended it, after it had begun its greeting.
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
            await to_outside.wait_closed()  # the last words of ours are still to be sent
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
    with contextlib.suppress(OSError):  # one of both has gone: so does the other
        while data := await source.read(CHUNK_BYTES):
            if meter is not None:
                meter.count_bytes(data)
            sink.write(data)
            await sink.drain()


@dataclass(slots=True)
class _ProxiedConnection:
    """One connection from outside. ``host``: its number."""

    host: str
    task: asyncio.Task[None]


class Proxy:
    """Takes a join server's connections, and knows whose they are.

    Args:
        listener: Listens, and does not block. Taken over.
        inside: Where the join server's ZeroMQ socket is bound, as ``bind_inside`` says.
    """

    def __init__(self, listener: socket.socket, inside: str) -> None:
        self._listener, self._inside = listener, inside
        # own name of the inner connection -> the outer one, the oldest first
        self._visits: dict[str, _ProxiedConnection] = {}
        self._numbers = itertools.count()
        self._held = HeldBytes()
        self.cut = 0  # connections that sent too much, or were too many

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                outside, address = await loop.sock_accept(self._listener)
            except OSError:
                # no more descriptors, or whoever knocked has gone:
                # those that are open end by themselves
                await asyncio.sleep(NO_DESCRIPTORS_S)
                continue
            name = f"{self._inside}.{next(self._numbers)}"
            task = asyncio.create_task(self._receive(outside, name, FrameMeter(self._held)))
            self._visits[name] = _ProxiedConnection(str(address[0]), task)
            await self._make_room()
            await asyncio.sleep(0)  # an accept that need not wait gives nobody else a turn

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
            pass  # it took too long, or has gone: nobody waits for more
        finally:
            outside.close()
            inside.close()
            meter.release_bytes()
            self._visits.pop(name, None)

    async def _make_room(self) -> None:
        """Close connections until they are few enough: each time the oldest of the host that has
        most."""
        while len(self._visits) > VISITORS_MAX:
            most = Counter(visit.host for visit in self._visits.values()).most_common(1)[0][0]
            oldest = next(visit for visit in self._visits.values() if visit.host == most)
            self.cut += 1
            await _cancelled([oldest.task])

    def host_of(self, frame: zmq.Frame) -> str:
        """The number of the host that a message came from; "": its connection has ended."""
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
