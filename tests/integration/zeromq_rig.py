"""What the tests of the ZeroMQ transport share: raw sockets that say what they should not, and
peers in other processes."""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import zmq

from gossip.core.events import LinkUp, Payload, Received
from gossip.core.messages import Envelope, Message, Ping, Update
from gossip.transport.base import Arrival
from gossip.transport.codec import encode
from gossip.transport.curve import KeyPair, as_client, new_pair
from gossip.transport.sessions import (
    CHUNK,
    HEADER,
    MESSAGE,
    OVERHEAD,
    WELCOME_BYTES,
    OpeningSession,
    RecordSealer,
    SessionOffer,
)
from gossip.transport.zeromq import ZeroMQTransport

RUN = b"this-run"
PATIENCE_S = 30.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
_PROPERTIES = (
    b"\x05READY\x0bSocket-Type"
    + struct.pack(">I", 6)
    + b"DEALER\x08Identity"
    + struct.pack(">I", 0)
)
READY = bytes([4, len(_PROPERTIES)]) + _PROPERTIES


_open: list[ZeroMQTransport | SealedSpeaker] = []


def close_all() -> None:
    """Close all transports and speakers of a test (``conftest.py``)."""
    while _open:
        _open.pop().close()


def transport(local: int = 1, limit: int = 8, **options) -> ZeroMQTransport:
    made = ZeroMQTransport(RUN, local, 0, lambda sender, message: limit, **options)
    _open.append(made)
    return made


def update(round_id: int = 0) -> Update:
    return Update(b"lineage1", round_id, 0, 0, b"d" * 16, 32, 0.5)


def floats(nbytes: int) -> Payload:
    return Payload(np.arange(nbytes // 4, dtype=np.float32), nbytes)


def header(message: Message, sender: int = 0) -> bytes:
    return encode(Envelope(RUN, sender, 0, message))


class Known:
    """Who is on the list of everybody, until somebody changes it."""

    def __init__(self, peers: Iterable[int]) -> None:
        self.pairs = {peer: new_pair() for peer in peers}
        self.listed = {peer: pair.public for peer, pair in self.pairs.items()}
        self.version = 0

    def list(self, peer: int, key: str | None) -> None:
        self.listed.pop(peer, None)
        if key is not None:
            self.listed[peer] = key
        self.version += 1

    def of(self, peer: int) -> KeysOf:
        return KeysOf(self, self.pairs[peer])


class KeysOf:
    """What one peer has of them: a ``gossip.transport.curve.Keys``."""

    def __init__(self, known: Known, pair: KeyPair) -> None:
        self.known, self.pair, self.refreshes = known, pair, 0

    @property
    def version(self) -> int:
        return self.known.version

    def key_of(self, peer: int) -> str | None:
        return self.known.listed.get(peer)

    def peer_of(self, key: str) -> int | None:
        return next((peer for peer, listed in self.known.listed.items() if listed == key), None)

    def not_allowed(self, key: str) -> tuple[str, str] | None:
        return None

    def outside(self) -> dict[int, str]:
        return {}

    def refresh(self) -> None:
        self.refreshes += 1


class WatchedTransport:
    """A transport that is driven until something is so."""

    def __init__(self, *driven: ZeroMQTransport) -> None:
        self.driven = driven
        self.heard: dict[ZeroMQTransport, list[Arrival]] = {one: [] for one in driven}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, (
                f"waited in vain for {what}: {[one.traffic for one in self.driven]}"
            )
            self.turn()

    def turn(self) -> None:
        for one in self.driven:
            self.heard[one] += one.poll(0.005)

    def forget(self, one: ZeroMQTransport) -> None:
        """Refers to nothing any more that has come."""
        self.heard[one].clear()

    def received(self, one: ZeroMQTransport) -> list[Received]:
        return [arrival for arrival in self.heard[one] if isinstance(arrival, Received)]

    def link(self, first: ZeroMQTransport, peer: int, second: ZeroMQTransport) -> None:
        first.connect(peer, second.control, second.bulk)
        self.until(lambda: LinkUp(peer) in self.heard[first], "LinkUp")

    def line_of(self, child: subprocess.Popen) -> str:
        """Return the next line of another process, which may wait for an admission here."""
        assert child.stdout is not None
        self.until(lambda: bool(select.select([child.stdout], [], [], 0)[0]), "a line")
        return child.stdout.readline()

    def serves(self, one: ZeroMQTransport) -> None:
        """An honest peer that comes now is heard on both lanes."""
        with honest(one) as friend:
            self.until(lambda: bool(friend.poll(0.005)), "a link to the victim")
            count = len(self.received(one))
            assert friend.send(1, Ping(99, 1, ()))
            assert friend.send(1, update(99), floats(8))
            self.until(lambda: len(self.received(one)) >= count + 2, "an honest peer to be heard")


@contextmanager
def honest(victim: ZeroMQTransport) -> Iterator[ZeroMQTransport]:
    friend = transport(local=2)
    try:
        friend.connect(1, victim.control, victim.bulk)
        yield friend
    finally:
        friend.close()


@contextmanager
def stranger(address: str, **options) -> Iterator[zmq.Socket]:
    """A DEALER that may say anything. Options are those of ZeroMQ, in lower case."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    for name, value in ({"linger": 0, "immediate": 1} | options).items():
        dealer.set(getattr(zmq, name.upper()), value)
    dealer.connect(address)
    try:
        assert dealer.poll(PATIENCE_S * 1000, zmq.POLLOUT)
        yield dealer
    finally:
        context.destroy(linger=0)


def raw(address: str) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    connection.settimeout(PATIENCE_S)
    return connection


def connect_zmtp(address: str) -> socket.socket:
    """A connection after the handshake, on which frames can be written by hand."""
    connection = raw(address)
    connection.sendall(GREETING)
    read_exactly(connection, 64)
    connection.sendall(READY)
    flags, length = read_exactly(connection, 2)
    assert flags == 4
    read_exactly(connection, length)
    return connection


def read_exactly(connection: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = connection.recv(nbytes - len(data))
        assert piece, "the other side closed"
        data += piece
    return data


def wait_closed(connection: socket.socket) -> None:
    """Until the other side closes. What it says before does not matter."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return


class SealedSpeaker:
    """A peer that sends on a payload lane, in records of its session, whatever a test wants.

    Args:
        known, peer: Whose key it has; ``known`` is None without keys.
        offers: Whether it offers its session first.
    """

    def __init__(
        self,
        victim: ZeroMQTransport,
        known: Known | None = None,
        peer: int = 0,
        *,
        offers: bool = True,
    ) -> None:
        keys = ("", "") if known is None else (known.pairs[peer].public, known.listed[1])
        self.session = OpeningSession(*keys, 0)
        self.sealer: RecordSealer | None = None
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.set(zmq.LINGER, 0)
        if known is not None:
            as_client(self._dealer, known.pairs[peer], known.listed[1])
        self._dealer.connect(victim.control)
        if offers:
            self.offer(self.session.offer)
        self.connection = raw(victim.bulk)
        self.connection.sendall(self.session.opening)
        self.connection.setblocking(False)
        _open.append(self)

    def offer(self, offer: SessionOffer) -> None:
        self._dealer.send(offer.encode())

    def prove(self, watched: WatchedTransport) -> RecordSealer:
        """Until it may speak."""
        said = b""

        def welcomed() -> bool:
            nonlocal said
            try:
                said += self.connection.recv(WELCOME_BYTES)
            except BlockingIOError:
                return False
            return len(said) == WELCOME_BYTES

        watched.until(welcomed, "a welcome")
        self.sealer = self.session.welcomed(said)
        self.connection.sendall(self.sealer.proof())
        return self.sealer

    def say(self, header: bytes, chunk: bytes | None = None) -> None:
        assert self.sealer is not None
        self.connection.setblocking(True)
        if chunk is None:
            self.connection.sendall(sealed(self.sealer, MESSAGE, header))
        else:
            self.connection.sendall(
                sealed(self.sealer, HEADER, header) + sealed(self.sealer, CHUNK, chunk)
            )

    def is_cut_off(self) -> bool:
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def close(self) -> None:
        self.connection.close()
        self._context.destroy(linger=0)


def sealed(sealer: RecordSealer, kind: int, data: bytes) -> bytes:
    """A record."""
    room = bytearray(len(data) + OVERHEAD)
    sealer.seal_into(kind, data, memoryview(room))
    return bytes(room)


CHILD = """
import select, sys
from zeromq_rig import WatchedTransport, floats, transport, update
from gossip.core.events import LinkUp
from gossip.core.messages import Ping
peer = transport(local=0, limit=8)
print(peer.control, peer.bulk, flush=True)
control, bulk = sys.stdin.readline().split()
peer.connect(1, control, bulk)
drive = WatchedTransport(peer)
drive.until(lambda: LinkUp(1) in drive.heard[peer], "LinkUp")
def wait_line():
    drive.until(lambda: bool(select.select([sys.stdin], [], [], 0.0)[0]), "a line")
    sys.stdin.readline()
{then}
while True:
    peer.poll(1.0)
"""


@contextmanager
def process(victim: ZeroMQTransport, then: str = "") -> Iterator[subprocess.Popen]:
    """Peer 0 in a process of its own, linked with ``victim`` both ways by and by."""
    command = [sys.executable, "-c", CHILD.replace("{then}", then)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=__file__.rpartition("/")[0],
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        control, bulk = child.stdout.readline().split()
        child.stdin.write(f"{victim.control} {victim.bulk}\n")
        victim.connect(0, control, bulk)
        yield child
    finally:
        child.kill()
        child.communicate()
