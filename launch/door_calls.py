"""Asking another door something, and saying what came back when it was no answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket as sockets
from typing import cast

import zmq
import zmq.asyncio

from gossip.errors import GossipError, Malformed
from gossip.transport.sockets import allow_ipv6

from . import door_messages as says

NUMBER_BYTES = 8
CONNECT_S = 1.0
_OPTIONS: dict[zmq.SocketOption, int] = {
    zmq.LINGER: 0,
    zmq.HANDSHAKE_IVL: 1500,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1000,
    zmq.CONNECT_TIMEOUT: 2000,
    zmq.MAXMSGSIZE: len(says.VERSION) + says.MESSAGE_BYTES_MAX,
    zmq.SNDHWM: 64,
    zmq.RCVHWM: 64,
    zmq.BACKLOG: 256,
}
_numbers = itertools.count(1)


class Unanswered(GossipError):
    """A door gave no answer. Its text says what came back instead: refused, nothing, or something else."""


def new_socket(context: zmq.asyncio.Context, kind: int) -> zmq.asyncio.Socket:
    """``kind`` is ROUTER, to be bound, or DEALER, to be connected."""
    socket = context.socket(kind)
    for option, value in _OPTIONS.items():
        socket.set(option, value)
    if kind == zmq.ROUTER:
        socket.set(zmq.ROUTER_MANDATORY, 1)  # else an answer that nobody waits for vanishes without an error
        socket.set(zmq.ROUTER_HANDOVER, 0)
    else:
        socket.set(zmq.IMMEDIATE, 1)
    return socket


def plain(socket: zmq.asyncio.Socket) -> zmq.Socket[bytes]:
    """The same for functions that set it up and neither send nor receive."""
    return cast("zmq.Socket[bytes]", socket)


async def ask(context: zmq.asyncio.Context, address: str, question: says.Question, timeout_s: float) -> says.Said:
    """The answer of the door at ``address`` (``HOST:PORT``, numbers only). Raises: Unanswered."""
    socket = new_socket(context, zmq.DEALER)
    sent = False
    try:
        async with asyncio.timeout(timeout_s):
            allow_ipv6(plain(socket), address)
            socket.connect(f"tcp://{address}")
            number = next(_numbers).to_bytes(NUMBER_BYTES, "little")
            await socket.send_multipart([number, says.encode(question)])
            sent = True
            while True:
                frames = await socket.recv_multipart()
                if len(frames) == 2 and frames[0] == number:
                    return _read(frames[1])
    except TimeoutError:
        raise Unanswered(await why_silent(address, connected=sent, waited_s=timeout_s)) from None
    except zmq.ZMQError as error:
        raise Unanswered(f"not an address: {error}") from None
    finally:
        socket.close(0)


def _read(data: bytes) -> says.Said:
    """Raises: Unanswered: It is nothing that this version can read."""
    try:
        return says.decode(data)
    except Malformed as error:
        other = says.is_other_version(data)
        speaks = f"it speaks version {data[3:4].decode('ascii', 'replace')} of doors, this gossip {says.VERSION[3:].decode()}"
        raise Unanswered(speaks if other else f"it gave an answer that is none: {error}") from None


async def why_silent(address: str, *, connected: bool, waited_s: float) -> str:
    """What a plain connection to a door that has not answered finds out."""
    if connected:
        return f"connected, and no answer in {waited_s:.0f} s"
    host, port = split(address)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return "no answer (timeout): no such host, or something in between drops what is sent to it"
    except ConnectionRefusedError:
        return "connection refused: nothing listens there"
    except OSError as error:
        return f"{error.strerror or error}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return "something listens there, and is no door of gossip or does not take this key"


def split(address: str) -> tuple[str, int]:
    """``10.0.0.5:7421`` or ``[fe80::1]:7421``. Raises: ValueError: It is neither."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is no HOST:PORT")
    if (":" in bare) != (host != bare):
        raise ValueError(f"{address!r}: the number of an IPv6 host stands in brackets, as in [fe80::1]:7421")
    return bare, int(port)


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def source_towards(host: str) -> str:
    """The own address that this machine would send from to reach ``host``, which is a number; "": there is no way there.

    Nothing is sent. The own hostname is never asked: it often leads to 127.0.0.1, or to another network.
    """
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    with sockets.socket(family, sockets.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return ""
