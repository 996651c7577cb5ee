"""Access control of a transport with keys: which keys may connect, to which peer a connection
belongs, and which connections are closed."""

from __future__ import annotations

import os
import select
import socket as sockets
import struct
from collections.abc import Sequence
from typing import cast

import zmq

from gossip.core import PeerId

from .base import Traffic
from .curve import Authenticator, Keys, as_server, prove_closed
from .strangers import RefusedKeys

NOBODY: PeerId = -2
"""Owner of a connection with a revoked key."""
SILENT_S = 5.0
"""Time after which a new connection without a message is closed, in seconds. A client sends
``GREETING`` at once, because only a message reveals the key of its connection."""
GREETING = b""
OUTSIDE_TOLD_MAX = 16
"""Maximum number of notices about rejected peers. It is below ``NOTICES_MAX``, so that there is
room for other notices."""
UNLISTED = "is in no seed file on this host"
LIST_IT = (
    "if it is a peer of this run, its seed file must reach this host, through the shared folder or "
    "the join server of its launcher"
)

_DONTWAIT = int(zmq.DONTWAIT)
_SRCFD = int(zmq.SRCFD)
_MONITOR_EVENT = struct.Struct("=Hi")
_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_BY_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
# If a monitor observes protocol failures, libzmq keeps a failed connection without reading it.
# Heartbeats end the connection (docs/design_notes.md N23).
_WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | _GONE
)
_WHY = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "no_key",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "stale_key",
}


class Guard:
    """Access control of the inbound socket of a context. The guard is created before the socket.
    Only the thread of the transport calls it.

    Attributes:
        fd: Descriptor that is readable if there are events for ``poll_events``.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, traffic: Traffic
    ) -> None:
        self.keys = keys
        self._context, self._traffic = context, traffic
        self._authenticator = Authenticator(context, self._admit)
        self._epoll = select.epoll()
        self._epoll.register(self._authenticator.fd, select.EPOLLIN)
        self.fd: int = self._epoll.fileno()
        self._guarded: GuardedSocket | None = None
        self._strangers = RefusedKeys()
        self._told_outside: set[PeerId] = set()
        self._proving = False

    def socket_of(self, socket: zmq.Socket[bytes]) -> GuardedSocket:
        """Make ``socket`` accept only connections with a valid key, and return it with its guard.
        ``socket`` must not be bound yet."""
        as_server(socket, self.keys.pair)
        self._guarded = GuardedSocket(socket, self.keys, self._traffic)
        self._epoll.register(self._guarded.fd, select.EPOLLIN)
        return self._guarded

    def prove_closed(self, addresses: Sequence[str]) -> None:
        """Check that all ``addresses`` reject an unknown key. Raises: LocalError."""
        self._proving = True
        try:
            prove_closed(self._context, addresses, self.keys.pair.public, self._authenticator)
        finally:
            self._proving = False

    def _admit(self, key: str, address: str) -> bool:
        if self.keys.peer_of(key) is None:
            self.keys.refresh()
        if self.keys.peer_of(key) is not None:
            return True
        if not self._proving:
            self._traffic.drop("unknown_key")
            self._strangers.refuse(key, address)
        return False

    def poll_events(self, now: float) -> None:
        """Reply to requests for admission, and handle the events of the socket."""
        self._authenticator.answer()
        if self._guarded is not None:
            self._guarded.poll_events(now)
        for address in self._strangers.settled(now):
            self._traffic.settled(("unknown_key", address))
        outside = set(self.keys.outside().values())  # ``sweep`` adds the notices about these keys
        for key, address in self._strangers.keys_to_report(
            now, lambda key: key in outside or self.keys.peer_of(key) is not None
        ):
            why, hint = self.keys.not_allowed(key) or (UNLISTED, LIST_IT)
            self._traffic.note(
                ("unknown_key", address),
                f"rejected a connection from {address}: its key {key[:8]}... {why}",
                hint,
            )

    def sweep(self) -> None:
        """Close the connections with revoked keys. Add notices about known peers without an allowed
        key."""
        if self._guarded is not None:
            self._guarded.sweep()
        outside = self.keys.outside()
        for peer in self._told_outside.difference(outside):
            self._traffic.settled(("not_allowed", peer))
            self._told_outside.discard(peer)
        for peer, key in outside.items():
            if (said := self.keys.not_allowed(key)) is not None and len(
                self._told_outside
            ) < OUTSIDE_TOLD_MAX:
                self._told_outside.add(peer)
                message = f"peer {peer} is not admitted: its key {key[:8]}... {said[0]}"
                self._traffic.note(("not_allowed", peer), message, said[1], about=peer)

    def close(self) -> None:
        """Close the guard. Called before the sockets are closed. From then on, new connections are
        rejected."""
        if self._guarded is not None:
            self._epoll.unregister(self._guarded.fd)
            self._guarded.close()
        self._epoll.close()
        self._authenticator.close()


class GuardedSocket:
    """A bound socket and the connections that it has accepted."""

    def __init__(self, socket: zmq.Socket[bytes], keys: Keys, traffic: Traffic) -> None:
        self._socket, self._keys, self._traffic = socket, keys, traffic
        self._monitor = socket.get_monitor_socket(_WATCHED)
        self.fd: int = self._monitor.FD
        # The descriptor signals nothing before this first read (see ``links.ControlLane``).
        self._monitor.get(zmq.EVENTS)
        self._connections: dict[int, float] = {}  # Descriptor -> time when it was accepted.
        self._owners: dict[int, str] = {}  # Descriptor -> key, after the first message.

    def owner_of(self, frame: zmq.Frame) -> PeerId:
        """Return the peer that sent ``frame``, by the key of its connection. If the key is revoked,
        count the frame, close the connection, and return ``NOBODY``."""
        key, fd = cast(str, frame.get("User-Id")), frame.get(_SRCFD)
        peer = self._keys.peer_of(key)
        if peer is None:
            self._traffic.drop("revoked_key")
            self._cut(fd)
            return NOBODY
        self._owners[fd] = key
        return peer

    def poll_events(self, now: float) -> None:
        """Process the events of the socket, and close new connections that have sent no message."""
        while True:
            try:
                event, value = _MONITOR_EVENT.unpack(self._monitor.recv_multipart(_DONTWAIT)[0])
            except zmq.Again:
                break
            if event == zmq.EVENT_ACCEPTED:
                self._connections[value] = now
                self._owners.pop(value, None)
            elif event & _GONE:
                self._connections.pop(value, None)
                self._owners.pop(value, None)
            else:
                self._fail(
                    _WHY.get(value, "bad_handshake") if event == _BY_PROTOCOL else "bad_handshake"
                )
        for fd, since in list(self._connections.items()):
            if now - since >= SILENT_S and fd not in self._owners:
                self._traffic.drop("bad_handshake")
                self._cut(fd)

    def _fail(self, why: str) -> None:
        self._traffic.drop(why)
        if why == "no_key":
            self._traffic.note(
                why,
                "rejected a connection without a key",
                "start all peers of a run with keys, or all without keys",
            )

    def sweep(self) -> None:
        for fd in [fd for fd, key in self._owners.items() if self._keys.peer_of(key) is None]:
            self._cut(fd)

    def _cut(self, fd: int) -> None:
        """Shut down a connection. libzmq has no call to close it, but detects the shutdown. By now
        ``fd`` may belong to another connection, so its port is checked."""
        if fd not in self._connections:
            return
        port = int(
            cast(bytes, self._socket.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").rpartition(b":")[2]
        )
        try:
            end = sockets.socket(fileno=os.dup(fd))
        except OSError:
            return
        with end:
            try:
                if (
                    end.family in (sockets.AF_INET, sockets.AF_INET6)
                    and end.getsockname()[1] == port
                ):
                    end.shutdown(sockets.SHUT_RDWR)
            except OSError:
                return  # the connection has ended in the meantime

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
