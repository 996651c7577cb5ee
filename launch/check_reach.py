"""``gossip doctor --to``: whether something listens at an address, what it is, how far away, and what it sees of us."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from typing import TYPE_CHECKING

from gossip.errors import ConfigError
from gossip.transport.addresses import is_loopback

from .findings import Finding

if TYPE_CHECKING:
    from .door_messages import Here

CONNECT_S = 2.0
GREETING_S = 0.5
TRIES = 5
SIGNATURE = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03"  # how ZeroMQ begins, and its version: 3


def reach(address: str) -> list[Finding]:
    """What there is at ``HOST:PORT``. Raises: ConfigError: That is no address."""
    host, port = _split(address)
    try:
        number = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        do = "give its number, such as 10.0.0.7"
        return [Finding("fail", "address", f"nobody knows a host {host!r}: {error.strerror or error}", do)]
    try:
        times, source, greeting = _knock(number, port)
    except OSError as error:
        return [_closed(number, port, error)]
    where = f"{number}:{port}"
    facts = {"address": where, "source": source, "connect_ms": [round(1000 * took, 3) for took in times]}
    said = f"something listens at {where}, {1000 * min(times):.2f} ms away; we come from {source}"
    found = [Finding("ok", "connection", said, facts=facts)]
    if is_loopback(source) and not is_loopback(number):
        found.append(Finding("warn", "source", f"{number} is this machine itself", "give the address of the other one"))
    return [*found, *_what(number, port, greeting)]


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"{address!r} is no HOST:PORT", "for example gossip doctor --to 10.0.0.7:7421, or [fe80::1]:7421")
    return bare, int(port)


def _knock(host: str, port: int) -> tuple[list[float], str, bytes]:
    """Seconds that connecting takes, the own address, and the first bytes that are said there. Raises: OSError."""
    times, source, greeting = [], "", b""
    for attempt in range(TRIES):
        began = time.monotonic()
        with socket.create_connection((host, port), CONNECT_S) as end:
            times.append(time.monotonic() - began)
            source = str(end.getsockname()[0])
            if attempt == TRIES - 1:
                greeting = _greeting(end)
    return times, source, greeting


def _greeting(end: socket.socket) -> bytes:
    """What it says to one that begins as ZeroMQ does; 64 bytes are a whole greeting of its kind."""
    data, until = b"", time.monotonic() + GREETING_S
    try:
        end.sendall(SIGNATURE)
        while len(data) < 64 and (left := until - time.monotonic()) > 0:
            end.settimeout(left)
            if not (more := end.recv(64 - len(data))):
                break
            data += more
    except OSError:
        pass  # it said no more, or hung up
    return data


def _closed(host: str, port: int, error: OSError) -> Finding:
    where, source = f"{host}:{port}", _source(host)
    facts = {"address": where, "error": error.strerror or str(error), "source": source}
    came = f" (from {source})" if source else ""
    match error.errno:
        case errno.ECONNREFUSED:
            said = f"{where} refuses connections{came}: the host is there, and nothing listens on that port"
            do = "is the run still up, and did it print this address? gossip ls, on that host"
        case errno.ENETUNREACH | errno.EHOSTUNREACH:
            said = f"there is no way from here to {where}{came}: {error.strerror}"
            do = "is it the address of a network that both hosts are on? gossip doctor, on that host"
        case _ if isinstance(error, TimeoutError):
            said = f"no answer from {where} in {CONNECT_S:.0f} s{came}: no such host, or a firewall drops what is sent to it"
            do = f"on that host: gossip doctor --to {where}; if that works, open the port in the firewall between"
        case _:
            said, do = f"cannot connect to {where}{came}: {error.strerror or error}", "gossip doctor, on that host"
    return Finding("fail", "connection", said, do, facts)


def _source(host: str) -> str:
    from .checks import source_towards

    return source_towards(host)


def _what(host: str, port: int, greeting: bytes) -> list[Finding]:
    """What listens there, by how it greets."""
    if greeting[:1] != b"\xff" or greeting[9:10] != b"\x7f":
        words = greeting.split(b"\r")[0].split(b"\n")[0].decode("ascii", "replace")
        shown = f": it says {words!r}" if words.isprintable() and words else " that says nothing"
        do = "compare the address with the one that the run printed"
        return [Finding("fail", "protocol", f"another program listens there{shown}, which is not gossip", do)]
    mechanism = greeting[12:32].rstrip(b"\0").decode("ascii", "replace")
    zeromq = {"mechanism": mechanism}
    if mechanism == "CURVE":
        said = "ZeroMQ with keys (CURVE): who has none is told nothing, so what it is cannot be said from here"
        return [Finding("ok", "protocol", said, "gossip join with the key of the run tells more", zeromq)]
    here, why = _ask_door(host, port)
    if here is None:
        said = f"ZeroMQ without keys, and no door of gossip ({why})"
        do = "a peer's own port is no door: give the address that the run printed for gossip join"
        return [Finding("warn", "protocol", said, do, zeromq)]
    return _door(here)


def _ask_door(host: str, port: int) -> tuple[Here | None, str]:
    import zmq.asyncio

    from . import door_messages as says
    from .door_calls import Unanswered, ask

    async def look() -> tuple[Here | None, str]:
        context = zmq.asyncio.Context()
        try:
            answer = await ask(context, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", says.Look(), CONNECT_S)
            return (answer, "") if isinstance(answer, says.Here) else (None, f"it answered {type(answer).__name__}")
        except Unanswered as error:
            return None, str(error)
        finally:
            context.destroy(0)

    return asyncio.run(look())


def _door(here: Here) -> list[Finding]:
    from .door_messages import Versions

    peers = f"{len(here.peers)} peers" if here.peers else "no peers yet"
    facts = {"run": here.run.hex(), "name": here.name, "state": here.state, "free": here.free, "seen": here.seen}
    said = f"a door of the run {here.name} ({here.state}, {peers}, room for {here.free} more); it sees us as {here.seen}"
    found = [Finding("ok", "protocol", said, facts=facts)]
    if differences := Versions.here().differences(here.versions):
        said = f"this machine could not join: {', '.join(differences)}"
        found.append(Finding("fail", "versions there", said, "install the same versions on both"))
    return found
