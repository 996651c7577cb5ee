"""CURVE: keys authenticate connections, and everything is encrypted (docs/design_notes.md N11).

A listening socket is made with ``as_server``, a connecting one with ``as_client``. The
``Authenticator`` of a server's context decides which keys are admitted. Without one every handshake
fails, because the domain is enforced. libzmq's own defaults admit everybody when there is no
domain, or when the handler is dead and the domain is not enforced.
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

KEY_CHARS = 40  # 32 bytes as text
DOMAIN = "gossip"
SELF_TEST_S = 15.0  # it takes milliseconds, unless many nodes start on few processors
STATUS_REFUSED = 400

_HANDLER = "inproc://zeromq.zap.01"
_DONTWAIT = int(zmq.DONTWAIT)
_MONITOR_EVENT = struct.Struct("=Hi")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both halves as text of 40 characters. The secret one is never shown."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """Keys of a link to one peer, in a run with keys.

    Attributes:
        pair: Key pair of this peer.
        other: The public key of the other side.
        incarnation: Returns the present incarnation of this peer.
        rooms: Buffers in which payloads are sealed, one chunk at a time for each peer that has no
            room.
    """

    pair: KeyPair
    other: str
    incarnation: Callable[[], int]
    rooms: BufferPool


def new_pair() -> KeyPair:
    """Raises: ConfigError: The libzmq of this machine was built without CURVE."""
    require_curve()
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def public_of(secret: str) -> str:
    """The other half of a secret key."""
    return zmq.curve_public(secret.encode("ascii")).decode("ascii")


def is_key(text: object) -> bool:
    """Whether this may be a key: nothing is said about whose. It may be a peer's word."""
    if not isinstance(text, str) or len(text) != KEY_CHARS or not text.isascii():
        return False
    try:
        return len(z85.decode(text.encode("ascii"))) == 32
    except (KeyError, ValueError, struct.error):
        return False


def require_curve() -> None:
    """Raises: ConfigError: The libzmq of this machine was built without CURVE."""
    if not zmq.has("curve"):
        raise ConfigError(
            "the ZeroMQ library on this machine was built without CURVE, so there can be no keys",
            "install pyzmq from a wheel (pip install --force-reinstall pyzmq), which has it",
        )


def as_server(socket: zmq.Socket[Any], pair: KeyPair, domain: str = DOMAIN) -> None:
    """Makes a socket one that only lets in whom the ``Authenticator`` of its context admits.
    Before it is bound."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, pair.secret.encode("ascii"))
    socket.set(zmq.ZAP_DOMAIN, domain.encode("ascii"))
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else whoever knocks while the handler is dead is let in


def as_client(socket: zmq.Socket[Any], pair: KeyPair, server_key: str) -> None:
    """Makes a socket one that shows this key, and only talks to who has the other half of
    ``server_key``. Before it connects."""
    socket.set(zmq.CURVE_SERVERKEY, server_key.encode("ascii"))
    socket.set(zmq.CURVE_PUBLICKEY, pair.public.encode("ascii"))
    socket.set(zmq.CURVE_SECRETKEY, pair.secret.encode("ascii"))


class Keys(Protocol):
    """The own pair, and which key is whose. What is known of the others may change at any time."""

    @property
    def pair(self) -> KeyPair: ...

    @property
    def version(self) -> int:
        """Another number whenever a key came, changed or went."""
        ...

    def key_of(self, peer: PeerId) -> str | None: ...

    def peer_of(self, key: str) -> PeerId | None: ...

    def not_allowed(self, key: str) -> tuple[str, str] | None:
        """In words, to go behind a key: that it is on no list of who is allowed, and what to do.
        None: nothing to say."""
        ...

    def outside(self) -> Mapping[PeerId, str]:
        """Peers that are known, but not let in because their keys are not
        allowed, and those keys."""
        ...

    def refresh(self) -> None:
        """Looks whether there is news, because somebody knocks whom nobody knows,
        or a key does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """Somebody who has proved to have the secret half of ``key`` asks to be let in."""

    domain: str
    address: str
    """The number of the host that the connection comes from, without a port."""
    key: str


class Authenticator:
    """Decides who is let in at the servers of a context: one for each context, made before the
    first of them is bound.

    It has no thread: whoever owns it calls ``answer`` when ``fd`` is readable, and now and then
    besides (the descriptor of a ZeroMQ socket tells of news only). In an asyncio loop
    ``loop.add_reader(authenticator.fd, authenticator.answer)``. A handshake waits for that, up to
    ``HANDSHAKE_IVL``.

    Every message of a connection that was let in says whose it is:
    ``frame.get("User-Id")`` is the public key.

    Args:
        admit: Whether to let this one in. It is asked again at every connection, so a list may
            change at any time.
    """

    def __init__(self, context: zmq.Context[Any], admit: Callable[[AuthRequest], bool]) -> None:
        self._admit = admit
        # The context may be one of asyncio, whose sockets are not for use without its loop.
        self._socket = zmq.Context(shadow=context.underlying).socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_HANDLER)
        self.fd: int = self._socket.FD

    def answer(self) -> None:
        """Answers all that is asked. Never blocks."""
        while not self._socket.closed:
            try:
                request = self._socket.recv_multipart(_DONTWAIT)
            except zmq.Again:
                return
            self._answer(request)

    def _answer(self, request: list[bytes]) -> None:
        version, request_id, domain, address, _, mechanism, *credentials = request
        status, key = str(STATUS_REFUSED).encode(), ""
        try:
            if version == b"1.0" and mechanism == b"CURVE" and len(credentials) == 1:
                key = z85.encode(credentials[0]).decode("ascii")
                if self._admit(
                    AuthRequest(
                        domain.decode("utf-8", "replace"), address.decode("ascii", "replace"), key
                    )
                ):
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
    """Knocks at own servers with a key that nobody knows.

    Raises: LocalError: One of them lets it in, or does not answer.
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
            said = "does not answer"
            if how is not None:
                said = "lets anybody in" if how[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED else "fails"
            raise LocalError(
                f"self-test of the keys: {address} {said} when an unknown key connects, so "
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
