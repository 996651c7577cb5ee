"""Sockets of both lanes, with safe options in place of unsafe defaults, and checks of the addresses
that they may use (docs/design_notes.md N9)."""

from __future__ import annotations

import errno
import re
import socket as tcp

import psutil
import zmq

from gossip.errors import AddressInUse, ConfigError

from .addresses import is_loopback, is_one_host
from .base import FAR_LINK_TIMEOUT_S, LINK_TIMEOUT_S
from .codec import HEADER_BYTES_MAX

_ENDPOINT = re.compile(r"tcp://(\[[0-9a-fA-F:]+\]|[0-9.]+):([0-9]{1,5})", re.ASCII)

BACKLOG = 256  # maximum number of connections that wait to be accepted
SEGMENT_BYTES_MAX = 1200
"""Maximum size of TCP segments between hosts, in bytes. It is set for the listener. It holds for
both directions, because connections of the listener inherit it and announce it to the other side.
Every IPv6 path carries packets of 1,280 bytes. Some routers drop larger packets without a message
(RFC 2923, 2.1)."""
HANDSHAKE_S = 5.0
"""Time after which a connection is closed if it has not proved that it belongs to a peer, in
seconds. CURVE takes four round trips, which are 2 s over a satellite."""
# Maximum size of a frame on an outbound connection: the longest CURVE command has 168 bytes, and an
# error message at most 256.
HANDSHAKE_BYTES_MAX = 512
_BOTH_WAYS: dict[zmq.SocketOption, int] = {
    zmq.LINGER: 0,  # By default, closing the context may wait forever.
    zmq.HANDSHAKE_IVL: round(1000 * HANDSHAKE_S),
    zmq.RECONNECT_IVL: 50,  # ms; doubled for each attempt, up to RECONNECT_IVL_MAX
    zmq.RECONNECT_IVL_MAX: 1000,
    zmq.CONNECT_TIMEOUT: 2000,
    # An idle connection to a host that does not reply is closed after half a minute.
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 4,
    zmq.BACKLOG: BACKLOG,
    zmq.RCVHWM: 0,  # Unbounded; the comment below has the reason.
    # This limits also the time for which a receiver with a full queue reads nothing.
    zmq.TCP_MAXRT: 5000,
}
# A socket that sends heartbeats can abort its process when a connection ends. This happens if
# libzmq has stopped reading from the connection because its queue is full (libzmq 4.3.5, #4364: the
# timer writes to the connection, "Assertion failed: !_io_error"). A peer can cause it: it sends a
# little more than is read, and disconnects, or dies while this process sleeps. Replies to earlier
# heartbeats can cause it, too. So the queues of the control lane are unbounded. Inbound sockets
# store every frame, and outbound sockets must not receive any frame (``links.ControlLane``
# disconnects a peer that sends a frame).
# On one host, heartbeats detect a stopped process or a cut link within 300..400 ms (by default,
# never). Between hosts, a heartbeat may be lost behind payloads. TCP sends it again after 0.2 s,
# then after another 0.4 s, and queues on the path add their delay. So the timeout is longer there,
# and the failure detector is faster, because it observes whether payloads are in transfer. If the
# control lane is down, both lanes are considered down.
_NEAR_MS, _FAR_MS = round(1000 * LINK_TIMEOUT_S), round(1000 * FAR_LINK_TIMEOUT_S)
_HEARTBEAT = {zmq.HEARTBEAT_IVL: 100, zmq.HEARTBEAT_TIMEOUT: _NEAR_MS, zmq.HEARTBEAT_TTL: _NEAR_MS}
_HEARTBEAT_FAR = {
    zmq.HEARTBEAT_IVL: 250,
    zmq.HEARTBEAT_TIMEOUT: _FAR_MS,
    zmq.HEARTBEAT_TTL: _FAR_MS,
}
_OUT = {zmq.MAXMSGSIZE: HANDSHAKE_BYTES_MAX, zmq.SNDHWM: 256}
_IN = {zmq.MAXMSGSIZE: HEADER_BYTES_MAX}
# The sizes of the buffers are not set: the kernel adapts them to the round trip and the rate of the
# link, within tcp_wmem. Fixed buffers of 512 KiB reached a fifth of the rate of a link with 200
# Mbit/s and 100 ms (distant_payloads.py).
_BULK_TCP = (
    (tcp.SOL_SOCKET, tcp.SO_KEEPALIVE, 1),
    (tcp.IPPROTO_TCP, tcp.TCP_KEEPIDLE, _BOTH_WAYS[zmq.TCP_KEEPALIVE_IDLE]),
    (tcp.IPPROTO_TCP, tcp.TCP_KEEPINTVL, _BOTH_WAYS[zmq.TCP_KEEPALIVE_INTVL]),
    (tcp.IPPROTO_TCP, tcp.TCP_KEEPCNT, _BOTH_WAYS[zmq.TCP_KEEPALIVE_CNT]),
    (tcp.IPPROTO_TCP, tcp.TCP_USER_TIMEOUT, 30_000),  # ms
    (tcp.IPPROTO_TCP, tcp.TCP_NODELAY, 1),
)


def new_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, *, far: bool = False
) -> zmq.Socket[bytes]:
    """Return a new socket of the control lane: a ROUTER to be bound, or a DEALER to be connected.
    ``far``: whether the DEALER connects to another host. No routing id is set, because libzmq must
        choose it."""
    socket = context.socket(kind)
    inbound = kind == zmq.ROUTER
    own = _IN if inbound else _OUT | (_HEARTBEAT_FAR if far else _HEARTBEAT)
    for option, value in (_BOTH_WAYS | own).items():
        socket.set(option, value)
    if inbound:
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 0)
    else:
        # Without this option, messages would be queued for dead peers and arrive rounds late.
        socket.set(zmq.IMMEDIATE, 1)
    return socket


def is_far(address: str) -> bool:
    """Whether the address of a lane may lead to another host."""
    match = _ENDPOINT.fullmatch(address)
    return match is not None and not is_loopback(match[1].strip("[]"))


def endpoint(address: str, anywhere: bool = False) -> bool:
    """Whether ``address``, which may come from another peer, is a valid TCP address of a lane. It
    must be on loopback, or on any single host if ``anywhere`` is true."""
    match = _ENDPOINT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65536:
        return False
    host = match[1].strip("[]")
    return is_loopback(host) or (anywhere and is_one_host(host))


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and the port of a valid address (``endpoint``)."""
    match = _ENDPOINT.fullmatch(address)
    assert match is not None, address
    return match[1].strip("[]"), int(match[2])


def bulk_options(connection: tcp.socket) -> None:
    """Set the options of a TCP connection of the bulk lane."""
    for level, option, value in _BULK_TCP:
        connection.setsockopt(level, option, value)


def bind(socket: zmq.Socket[bytes], host: str, port: int, anywhere: bool = False) -> str:
    """Bind a ZeroMQ socket to a listening socket from ``listen``. Return the address. Raises:
    ConfigError, AddressInUse: As ``listen``."""
    listener = listen(host, port, anywhere)
    address = address_of(listener)
    allow_ipv6(socket, address)
    try:
        socket.set(zmq.USE_FD, listener.fileno())
        socket.bind(address)
    except zmq.ZMQError as error:
        listener.close()
        raise _cannot_listen(address, port, error, taken=False) from None
    listener.detach()
    return address


def listen(host: str, port: int, anywhere: bool = False) -> tcp.socket:
    """Return a non-blocking socket that accepts connections.

    Raises: ConfigError: ``host`` is not a loopback address and ``anywhere`` is False, or ``host``
    is not the address of a single host. AddressInUse: The port is in use.
    """
    host = _allowed(host, port, anywhere)
    listener = tcp.socket(tcp.AF_INET6 if ":" in host else tcp.AF_INET, tcp.SOCK_STREAM)
    try:
        listener.setsockopt(tcp.SOL_SOCKET, tcp.SO_REUSEADDR, 1)
        if not is_loopback(host):
            listener.setsockopt(tcp.IPPROTO_TCP, tcp.TCP_MAXSEG, SEGMENT_BYTES_MAX)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        address = f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}"
        raise _cannot_listen(address, port, error, error.errno == errno.EADDRINUSE) from None
    return listener


def _allowed(host: str, port: int, anywhere: bool) -> str:
    """Return the IP address to listen on. Raises: ConfigError: It is not allowed."""
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    if not is_loopback(host) and not anywhere:
        raise ConfigError(
            f"refused to listen on {host!r} without keys: any host that reaches the port could "
            "join",
            "start the run with --keys; or --insecure, on a network where every host may join",
        )
    if not is_one_host(host):
        raise ConfigError(
            f"cannot listen on {host!r}: other hosts need an address to connect to",
            "use one address of this machine",
        )
    if not 0 <= port < 65536:
        raise ConfigError(
            f"port {port} is not within 0..65535", "leave the port out: a free one is chosen"
        )
    return host


def _cannot_listen(
    address: str, port: int, error: Exception, taken: bool
) -> AddressInUse | ConfigError:
    if not taken:
        return ConfigError(f"cannot listen on {address}: {error}", "use an address of this machine")
    return AddressInUse(address, find_listener(port))


def find_listener(port: int) -> str | None:
    """Return the pid and the name of the process that listens on a TCP port of this machine; None
    if unknown."""
    try:
        for found in psutil.net_connections(kind="tcp"):
            listens = found.status == psutil.CONN_LISTEN and found.laddr.port == port
            if listens and found.pid:
                return f"pid {found.pid} ({psutil.Process(found.pid).name()})"
    except psutil.Error:
        return None  # the process belongs to another user, or has ended
    return None


def allow_ipv6(socket: zmq.Socket[bytes], address: str) -> None:
    """Enable IPv6 on a socket only if ``address`` is an IPv6 address. On a socket with IPv6, IPv4
    addresses are reported as IPv6 addresses."""
    if "[" in address:
        socket.set(zmq.IPV6, 1)


def address_of(listener: tcp.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
