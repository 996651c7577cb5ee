"""Requests to other join servers, and the reasons why a request got no reply."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket as sockets
from typing import cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from gossip.errors import GossipError, Malformed
from gossip.transport import KeyPair, as_client

from . import join_messages as says
from .join_proxy import FrameMeter, HeldBytes, LimitExceeded, bind_inside, pass_on

NUMBER_BYTES = 8
CONNECT_S = 1.0
CONNECTS = "connected, but no reply: the program there is busy, or is not a join server of gossip"
OTHER_KEY = "refused by key: that join server has a different key, or none"
NO_KEY = "refused by key: that join server needs a key (--key FILE), or does not belong to gossip"
LAST_WORDS_S = 0.5
"""Time to read the data that arrived before the connection ended, in seconds."""
_WATCHED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_OPTIONS: dict[zmq.SocketOption, int] = {
    zmq.LINGER: 0,
    # less than ``join_socket.ASK_S``, so that a refused handshake ends before the request times out
    zmq.HANDSHAKE_IVL: 3000,
    zmq.MAXMSGSIZE: len(says.VERSION) + says.MESSAGE_BYTES_MAX,
    zmq.SNDHWM: 64,
    zmq.RCVHWM: 64,
    zmq.BACKLOG: 256,
}
_numbers = itertools.count(1)


class JoinServerUnreachable(GossipError):
    """A join server did not reply. ``why``: the reason; ``by_key``: the server rejected the local
    key, or requires a key."""

    def __init__(self, why: str, by_key: bool = False) -> None:
        super().__init__(why)
        self.why, self.by_key = why, by_key


def new_socket(context: zmq.asyncio.Context, kind: int) -> zmq.asyncio.Socket:
    """Return a socket that only ``join_proxy`` connects to. ``kind``: ROUTER for a join server,
    DEALER for a client."""
    socket = context.socket(kind)
    for option, value in _OPTIONS.items():
        socket.set(option, value)
    if kind == zmq.ROUTER:
        # Otherwise a reply to a closed connection vanishes without an error.
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 0)
    else:
        socket.set(zmq.IMMEDIATE, 1)
    return socket


def plain(socket: zmq.asyncio.Socket) -> zmq.Socket[bytes]:
    """Return the socket with the type of a synchronous socket, for functions that only configure
    it."""
    return cast("zmq.Socket[bytes]", socket)


async def ask(
    context: zmq.asyncio.Context,
    address: str,
    question: says.Question,
    timeout_s: float,
    key: KeyPair | None = None,
) -> says.Said:
    """Return the reply of the join server at ``address`` (``HOST:PORT``, the host as an IP
    address). ``key``: key of the swarm. Raises: JoinServerUnreachable."""
    dealer = new_socket(context, zmq.DEALER)
    if key is not None:
        as_client(plain(dealer), key, key.public)
    monitor = dealer.get_monitor_socket(_WATCHED)
    hung_up = asyncio.Event()
    asked = [
        asyncio.create_task(_ask(dealer, question)),
        asyncio.create_task(_refusal(monitor, key is not None, hung_up)),
    ]
    # Any program may listen at the address, so the proxy limits the data that it sends
    # (``join_proxy``).
    passage = asyncio.create_task(_connect(address, bind_inside(plain(dealer)), hung_up))
    try:
        done, _ = await asyncio.wait(
            [*asked, passage], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if passage in done and not done.intersection(asked):
            passage.result()
            done, _ = await asyncio.wait(
                asked, timeout=LAST_WORDS_S, return_when=asyncio.FIRST_COMPLETED
            )
        for answered in asked:
            if answered in done:
                return answered.result()
        raise JoinServerUnreachable(await why_silent(address))
    finally:
        for task in (*asked, passage):
            task.cancel()
        await asyncio.gather(*asked, passage, return_exceptions=True)
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(0)


async def _connect(address: str, inside: str, hung_up: asyncio.Event) -> None:
    """Connect to the address, and forward bytes until either side closes. Set ``hung_up`` if the
    remote side closed after it had begun its ZMTP greeting. Raises: JoinServerUnreachable."""
    try:
        host, port = split(address)
    except ValueError as error:
        raise JoinServerUnreachable(f"not an address: {error}") from None
    loop = asyncio.get_running_loop()
    near = sockets.socket(sockets.AF_UNIX)
    far = sockets.socket(sockets.AF_INET6 if ":" in host else sockets.AF_INET)
    with near, far:
        try:
            for end in (near, far):
                end.setblocking(False)
            await loop.sock_connect(far, (host, port))
            await loop.sock_connect(near, f"\0{inside}")
        except OSError as error:
            raise JoinServerUnreachable(_in_words(error)) from None
        try:
            if await pass_on(far, near, FrameMeter(HeldBytes())):
                hung_up.set()
        except LimitExceeded:
            raise JoinServerUnreachable(
                "the reply is longer than any reply of a join server"
            ) from None


async def _ask(dealer: zmq.asyncio.Socket, question: says.Question) -> says.Said:
    number = next(_numbers).to_bytes(NUMBER_BYTES, "little")
    await dealer.send_multipart([number, says.encode(question)])
    while True:
        frames = await dealer.recv_multipart()
        if len(frames) == 2 and frames[0] == number:
            return _read(frames[1])


async def _refusal(monitor: zmq.asyncio.Socket, has_key: bool, hung_up: asyncio.Event) -> says.Said:
    """Wait for a failed handshake. Raises: JoinServerUnreachable."""
    while True:
        event = parse_monitor_message(await monitor.recv_multipart())["event"]
        # An event without details may also be the local timeout of a slow handshake.
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or hung_up.is_set():
            break
    raise JoinServerUnreachable(OTHER_KEY if has_key else NO_KEY, by_key=True)


def _read(data: bytes) -> says.Said:
    """Decode a reply. Raises: JoinServerUnreachable: This version cannot read it."""
    try:
        return says.decode(data)
    except Malformed as error:
        other = says.is_other_version(data)
        speaks = (
            f"it has version {data[3:4].decode('ascii', 'replace')} of the join protocol, "
            f"this gossip has version {says.VERSION[3:].decode()}"
        )
        raise JoinServerUnreachable(
            speaks if other else f"its reply is malformed: {error}"
        ) from None


async def why_silent(address: str) -> str:
    """Connect to an address by plain TCP. Return the result as text for the user."""
    try:
        host, port = split(address)
    except ValueError as error:
        return str(error)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return "no reply (timeout): there is no such host, or a firewall drops the packets"
    except OSError as error:
        return _in_words(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return CONNECTS


def _in_words(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    return f"{error.strerror or error}"


def split(address: str) -> tuple[str, int]:
    """Return host and port of ``10.0.0.5:7421`` or ``[fe80::1]:7421``. Raises: ValueError:
    ``address`` has neither form."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is not HOST:PORT")
    if (":" in bare) != (host != bare):
        raise ValueError(f"{address!r}: an IPv6 address needs brackets, as in [fe80::1]:7421")
    return bare, int(port)


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def source_towards(host: str) -> str:
    """Return the local address from which this machine would send to the IP address ``host``; "" if
    there is no route.

    Nothing is sent. The hostname of this machine is not used: it often resolves to 127.0.0.1, or to
    an address in another network.
    """
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    with sockets.socket(family, sockets.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return ""
