"""CURVE for ZeroMQ sockets: keys authenticate connections, and all data is encrypted
(docs/design_notes.md N11).

``as_server`` prepares a socket that listens, and ``as_client`` a socket that connects. The
``Authenticator`` of a server's context decides which keys are admitted. Without an authenticator
every handshake fails, because ``as_server`` enforces the domain. By default, libzmq admits every
key if there is no domain, or if the handler is dead and the domain is not enforced.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import zmq
from zmq.utils import z85

from gossip.core import PeerId
from gossip.errors import ConfigError, LocalError

from .lending import BufferPool

KEY_CHARS = 40  # Z85 text of 32 bytes.
DOMAIN = b"gossip"
SELF_TEST_S = 15.0  # The test takes milliseconds unless many nodes start on few processors.
STATUS_REFUSED = 400

_HANDLER = "inproc://zeromq.zap.01"
_DONTWAIT = int(zmq.DONTWAIT)
_MONITOR_EVENT = struct.Struct("=Hi")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Public and secret key, each as text of 40 characters. ``repr`` does not show the secret
    key."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LinkParties:
    """Both ends of a link to one peer, for its connections.

    Attributes:
        incarnation: Returns the present incarnation of the local peer.
        rooms: Buffers in which chunks are sealed. If its socket has no room, a link stores one
            sealed chunk.
        pair: Key pair of the local peer; None in a run without keys.
        other: Public key of the other side; "" in a run without keys.
    """

    incarnation: Callable[[], int]
    rooms: BufferPool
    pair: KeyPair | None = None
    other: str = ""


def new_pair() -> KeyPair:
    """Return a new key pair. Raises: ConfigError: The libzmq of this machine was built without
    CURVE."""
    require_curve()
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def public_of(secret: str) -> str:
    """Return the public key of a secret key."""
    return zmq.curve_public(secret.encode("ascii")).decode("ascii")


def is_key(text: object) -> bool:
    """Whether ``text``, which may come from another peer, has the form of a key."""
    if not isinstance(text, str) or len(text) != KEY_CHARS or not text.isascii():
        return False
    try:
        return len(z85.decode(text.encode("ascii"))) == 32
    except (KeyError, ValueError, struct.error):
        return False


def require_curve() -> None:
    """Check that keys can be used. Raises: ConfigError: libzmq was built without CURVE."""
    if not zmq.has("curve"):
        raise ConfigError(
            "the ZeroMQ library on this machine was built without CURVE, so keys cannot be used",
            "install pyzmq from a wheel (pip install --force-reinstall pyzmq), which has it",
        )


def as_server(socket: zmq.Socket[Any], pair: KeyPair) -> None:
    """Make a socket accept only connections with keys that the ``Authenticator`` of its context
    admits. Call this before the socket is bound."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, pair.secret.encode("ascii"))
    socket.set(zmq.ZAP_DOMAIN, DOMAIN)
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # if there is no handler, no key is admitted


def as_client(socket: zmq.Socket[Any], pair: KeyPair, server_key: str) -> None:
    """Make a socket use ``pair`` and connect only to the owner of ``server_key``. Call this before
    the socket connects."""
    socket.set(zmq.CURVE_SERVERKEY, server_key.encode("ascii"))
    socket.set(zmq.CURVE_PUBLICKEY, pair.public.encode("ascii"))
    socket.set(zmq.CURVE_SECRETKEY, pair.secret.encode("ascii"))


class Keys(Protocol):
    """Key pair of the local peer, and the keys of the other peers. The keys of the other peers may
    change at any time."""

    @property
    def pair(self) -> KeyPair: ...

    @property
    def version(self) -> int:
        """Number that changes whenever a key is added, changed or removed."""
        ...

    def key_of(self, peer: PeerId) -> str | None: ...

    def peer_of(self, key: str) -> PeerId | None: ...

    def not_allowed(self, key: str) -> tuple[str, str] | None:
        """Return the reason why a key is not on the list of allowed keys, and a hint. The reason is
        text that follows the key in a message. Return None if there is no such reason."""
        ...

    def outside(self) -> Mapping[PeerId, str]:
        """Return the keys of the known peers that are rejected because their keys are not
        allowed."""
        ...

    def refresh(self) -> None:
        """Read the keys again. Called after an unknown key connected, or a peer rejected a
        handshake."""
        ...


class Authenticator:
    """Decides which clients may connect to the servers of a context. Each context has one
    authenticator, created before the first server is bound.

    The authenticator has no thread. Its owner calls ``answer`` when ``fd`` is readable, and also
    periodically, because the descriptor of a ZeroMQ socket is edge-triggered. In an asyncio loop,
    use ``loop.add_reader(authenticator.fd, authenticator.answer)``. A handshake waits for the reply
    for at most ``HANDSHAKE_IVL``. In every message on an admitted connection,
    ``frame.get("User-Id")`` is the public key of the sender.

    Args:
        admit: Returns whether to admit a client that has proved that it has the secret key of a
            public key. Its arguments are the public key, and the IP address of the client without a
            port. It is called for every connection, so it may return different values at different
            times.
    """

    def __init__(self, context: zmq.Context[Any], admit: Callable[[str, str], bool]) -> None:
        self._admit = admit
        # Sockets of an asyncio context need its event loop, so use a plain context with the same
        # state.
        self._socket = zmq.Context(shadow=context.underlying).socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_HANDLER)
        self.fd: int = self._socket.FD

    def answer(self) -> None:
        """Reply to all requests, without blocking."""
        while not self._socket.closed:
            try:
                request = self._socket.recv_multipart(_DONTWAIT)
            except zmq.Again:
                return
            self._answer(request)

    def _answer(self, request: list[bytes]) -> None:
        version, request_id, _, address, _, mechanism, *credentials = request
        status, key = str(STATUS_REFUSED).encode(), ""
        try:
            if version == b"1.0" and mechanism == b"CURVE" and len(credentials) == 1:
                key = z85.encode(credentials[0]).decode("ascii")
                if self._admit(key, address.decode("ascii", "replace")):
                    status = b"200"
        finally:
            user = key.encode("ascii") if status == b"200" else b""
            self._socket.send_multipart([b"1.0", request_id, status, b"", user, b""], _DONTWAIT)

    def close(self) -> None:
        self._socket.close(linger=0)


def prove_closed(
    context: zmq.Context[Any],
    addresses: Sequence[str],
    server_key: str,
    authenticator: Authenticator,
) -> None:
    """Connect to the servers of this peer with an unknown key, to prove that they reject the key.

    Raises: LocalError: A server admits the unknown key, or does not reply.
    """
    stranger = new_pair()
    plain = zmq.Context(shadow=context.underlying)
    for address in addresses:
        socket = plain.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, int("[" in address))
        as_client(socket, stranger, server_key)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        try:
            socket.connect(address)
            how = _first_event(monitor, authenticator)
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)
        if how != (zmq.EVENT_HANDSHAKE_FAILED_AUTH, STATUS_REFUSED):
            said = "does not reply"
            if how is not None:
                said = "admits it" if how[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED else "fails"
            raise LocalError(
                f"self-test of the keys: an unknown key connects to {address}, which {said}, so "
                "nothing is started"
            )


def _first_event(monitor: zmq.Socket[Any], authenticator: Authenticator) -> tuple[int, int] | None:
    until = time.monotonic() + SELF_TEST_S
    while time.monotonic() < until:
        authenticator.answer()
        if monitor.poll(1):
            event, value = _MONITOR_EVENT.unpack(monitor.recv_multipart()[0])
            return event, value
    return None
