"""``gossip doctor --to``: whether something listens at an address, what it is, how far away, and
what it sees of us."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from pathlib import Path

import zmq.asyncio

from gossip.errors import ConfigError
from gossip.launch.registry import (
    JoinServerUnreachable,
    ask,
    join,
    join_messages as says,
    source_towards,
    split,
)
from gossip.launch.report import counted
from gossip.run import fingerprint, read_pair
from gossip.transport import KeyPair, is_loopback

from .findings import Finding

CONNECT_S = 2.0
GREETING_S = 0.5
TRIES = 5
SIGNATURE = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03"  # how ZeroMQ begins, and its version: 3


def reach(address: str, key: Path | None = None) -> list[Finding]:
    """Return findings about what listens at ``HOST:PORT``, for a holder of the swarm key in file
    ``key``.

    Raises: ConfigError: The address or the key is invalid.
    """
    try:
        host, port = split(address)
    except ValueError as error:
        raise ConfigError(
            str(error), "for example gossip doctor --to 10.0.0.7:7421, or [fd00::1]:7421"
        ) from None
    pair = read_pair(key) if key is not None else None
    try:
        number = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        do = "give its number, such as 10.0.0.7"
        return [
            Finding(
                "fail", "address", f"nobody knows a host {host!r}: {error.strerror or error}", do
            )
        ]
    try:
        times, source, greeting = _request_to_join(number, port)
    except OSError as error:
        return [_closed(number, port, error)]
    where = join(number, port)
    facts = {
        "address": where,
        "source": source,
        "connect_ms": [round(1000 * took, 3) for took in times],
    }
    said = f"something listens at {where}, {1000 * min(times):.2f} ms away; we come from {source}"
    found = [Finding("ok", "connection", said, facts=facts)]
    if is_loopback(source) and not is_loopback(number):
        found.append(
            Finding(
                "warn",
                "source",
                f"{number} is this machine itself",
                "give the address of the other one",
            )
        )
    return [*found, *_what(where, greeting, pair)]


def _request_to_join(host: str, port: int) -> tuple[list[float], str, bytes]:
    """Seconds that connecting takes, the own address, and the first bytes that are said there.
    Raises: OSError."""
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
    """Send ZeroMQ's signature and return the bytes received in reply: 64 are a whole ZMTP
    greeting."""
    data, until = b"", time.monotonic() + GREETING_S
    try:
        end.sendall(SIGNATURE)
        while len(data) < 64 and (left := until - time.monotonic()) > 0:
            end.settimeout(left)
            if not (more := end.recv(64 - len(data))):
                break
            data += more
    except OSError:
        pass  # the other side sent no more, or closed the connection
    return data


def _closed(host: str, port: int, error: OSError) -> Finding:
    where, source = join(host, port), source_towards(host)
    facts = {"address": where, "error": error.strerror or str(error), "source": source}
    came = f" (from {source})" if source else ""
    match error.errno:
        case errno.ECONNREFUSED:
            said = (
                f"{where} refuses connections{came}: the host is there, and nothing listens on "
                "that port"
            )
            do = "is the run still up, and did it print this address? gossip ls, on that host"
        case errno.ENETUNREACH | errno.EHOSTUNREACH:
            said = f"there is no way from here to {where}{came}: {error.strerror}"
            do = (
                "is it the address of a network that both hosts are on? gossip doctor, on that host"
            )
        case _ if isinstance(error, TimeoutError):
            said = (
                f"no answer from {where} in {CONNECT_S:.0f} s{came}: no such host, or a firewall "
                "drops what is sent to it"
            )
            do = (
                f"on that host: gossip doctor --to {where}; if that works, open the port in the "
                "firewall between"
            )
        case _:
            said, do = (
                f"cannot connect to {where}{came}: {error.strerror or error}",
                "gossip doctor, on that host",
            )
    return Finding("fail", "connection", said, do, facts)


def _what(where: str, greeting: bytes, key: KeyPair | None) -> list[Finding]:
    """Identify what listens at ``where`` by its greeting and by its reply to a join server's
    query."""
    if greeting[:1] != b"\xff" or greeting[9:10] != b"\x7f":
        words = greeting.split(b"\r")[0].split(b"\n")[0].decode("ascii", "replace")
        shown = f": it says {words!r}" if words and words.isprintable() else " that says nothing"
        do = "compare the address with the one that the run printed"
        return [
            Finding(
                "fail", "protocol", f"another program listens there{shown}, which is not gossip", do
            )
        ]
    has_keys = greeting[12:32].rstrip(b"\0") == b"CURVE"
    facts = {"keys": has_keys, "key": fingerprint(key.public) if key is not None else None}
    if has_keys and key is None:
        said = (
            "ZeroMQ with keys (CURVE): without a key it does not answer, so what it is cannot "
            "be found out"
        )
        return [
            Finding(
                "ok",
                "protocol",
                said,
                "the same with --key runs/NAME/swarm.key, which is that of the run",
                facts,
            )
        ]
    if not has_keys and key is not None:
        do = "leave --key out; and do not train there unless you know why it has none"
        return [Finding("fail", "protocol", "ZeroMQ without keys, and a key was given", do, facts)]
    answer = _ask_join_server(where, key)
    if isinstance(answer, says.RunInfo):
        return _join_server(answer)
    if has_keys:
        said = f"no join server that takes this key ({facts['key']}): {answer}"
        return [
            Finding(
                "fail",
                "protocol",
                said,
                "copy swarm.key from the folder of that run: it is made anew for each",
                facts,
            )
        ]
    do = "this is a peer's own port: give the address that the run printed for gossip join"
    return [
        Finding(
            "warn",
            "protocol",
            f"ZeroMQ without keys, and no join server of gossip: {answer}",
            do,
            facts,
        )
    ]


def _ask_join_server(where: str, key: KeyPair | None) -> says.Said | str:
    """Its answer, or why there is none."""

    async def query_run() -> says.Said | str:
        context = zmq.asyncio.Context()
        try:
            return await ask(context, where, says.RunQuery(), CONNECT_S, key)
        except JoinServerUnreachable as error:
            return str(error)
        finally:
            context.destroy(0)

    answer = asyncio.run(query_run())
    return f"{answer.message} ({answer.hint})" if isinstance(answer, says.JoinRejected) else answer


def _join_server(here: says.RunInfo) -> list[Finding]:
    peers = counted(len(here.peers), "peer") if here.peers else "no peers yet"
    facts = {
        "run": here.run.hex(),
        "name": here.name,
        "state": here.state,
        "free": here.free,
        "seen": here.seen,
    }
    said = (
        f"a join server of the run {here.name} ({here.state}, {peers}, room for {here.free} "
        "more); it "
        f"sees us as {here.seen}"
    )
    found = [Finding("ok", "protocol", said, facts=facts)]
    if differences := says.Versions.here().differences(here.versions):
        said = f"this machine could not join: {', '.join(differences)}"
        found.append(Finding("fail", "versions there", said, "install the same versions on both"))
    return found
