"""Measurements between two hosts before the start: agents determine whether the hosts reach each
other, at which address, and at which rate.

Each agent listens on all addresses of its host. As for peers, the system chooses the ports. A
client must send a token that the launcher has sent to all agents. A listener replies with the id of
its agent, because hosts on separate networks may have the same address.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import time
from collections.abc import Iterable
from typing import Any

from gossip.errors import GossipError
from gossip.transport import listen

CONNECT_S = 3.0  # timeout of the connection and its first line, and then of each echo, in seconds
VISIT_S = 10.0
ECHOES = 5
MEASURE_S = 0.25
# time for data to arrive over a slow link, in seconds; only data that has arrived counts
ARRIVAL_S = 2.0
BLOCK = bytes(256 * 1024)
WORD_BYTES = 16


class Listener:
    """Listening side of the measurements. ``agent``: random id of the listener."""

    def __init__(self, word: str) -> None:
        self.agent = secrets.token_hex(8)
        self._word = word
        self._servers: list[asyncio.Server] = []

    async def open(self, addresses: Iterable[str]) -> dict[str, int]:
        """Listen on the addresses. Return the port of each address on which this is possible."""
        ports = {}
        for address in addresses:
            with contextlib.suppress(GossipError):
                listener = listen(address, 0, anywhere=True)  # as peers do
                ports[address] = listener.getsockname()[1]
                self._servers.append(await asyncio.start_server(self._visit, sock=listener))
        return ports

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(VISIT_S):
                if not hmac.compare_digest(
                    await reader.readexactly(2 * WORD_BYTES), self._word.encode()
                ):
                    return
                seen = writer.get_extra_info("peername")[0]
                writer.write(json.dumps({"agent": self.agent, "seen": seen}).encode() + b"\n")
                while (what := await reader.read(1)) == b"e":
                    writer.write(what)
                count, began = 0, time.monotonic()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ARRIVAL_S):
                        while what and (data := await reader.read(len(BLOCK))):
                            count += len(data)
                writer.write(
                    json.dumps({"bytes": count, "seconds": time.monotonic() - began}).encode()
                    + b"\n"
                )
                await writer.drain()
                while await reader.read(len(BLOCK)):
                    # Read all data first: closing a socket with unread data would lose the reply.
                    pass
        writer.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()


async def probe(address: str, port: int, agent: str, word: str) -> dict[str, Any]:
    """Return the shortest round-trip time to an agent (``ms``) and the local address as the agent
    sees it (``seen``), or the ``error``."""
    try:
        async with (
            asyncio.timeout(CONNECT_S) as limit,
            _visit(address, port, word) as (reader, writer),
        ):
            said = json.loads(await reader.readline())
            if said["agent"] != agent:
                return {"error": "another host has this address, too"}
            best = float("inf")
            for _ in range(ECHOES):
                limit.reschedule(asyncio.get_running_loop().time() + CONNECT_S)
                began = time.monotonic()
                writer.write(b"e")
                await reader.readexactly(1)
                best = min(best, time.monotonic() - began)
            return {"ms": best * 1000, "seen": said["seen"]}
    except TimeoutError:
        return {"error": f"no reply in {CONNECT_S:.0f} s"}
    except ConnectionRefusedError:
        return {"error": "connection refused"}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        return {"error": getattr(error, "strerror", None) or str(error) or type(error).__name__}


async def measure(address: str, port: int, word: str) -> dict[str, Any]:
    """Send data to a listener during ``MEASURE_S``. Return the rate (``mbit_s``), ``stuck`` if no
    data arrives, or the ``error``."""
    try:
        async with asyncio.timeout(VISIT_S), _visit(address, port, word) as (reader, writer):
            await reader.readline()
            writer.write(b"b")
            sending = asyncio.create_task(_send_blocks(writer))
            try:
                said = json.loads(await reader.readline())
            finally:
                sending.cancel()
            if not said["bytes"]:
                return {"stuck": f"no packet of full size arrived within {ARRIVAL_S:.0f} s"}
            return {"mbit_s": float(said["bytes"]) * 8e-6 / float(said["seconds"])}
    except (OSError, EOFError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        return {"error": str(error) or type(error).__name__}


async def _send_blocks(writer: asyncio.StreamWriter) -> None:
    until = time.monotonic() + MEASURE_S
    while time.monotonic() < until:
        writer.write(BLOCK)
        await writer.drain()
    writer.write_eof()


@contextlib.asynccontextmanager
async def _visit(address: str, port: int, word: str) -> Any:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(word.encode())
        yield reader, writer
    finally:
        writer.close()
