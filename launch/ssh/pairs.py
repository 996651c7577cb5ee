"""Measures whether two hosts reach each other, at which address and rate. Agents do this
before the start.

Each agent listens on all of its addresses, on ports that the system chooses, as peers do. A client
must send the token that the launcher gave to all agents. A listener sends the name of its agent,
because hosts may have the same address on separate networks.
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

CONNECT_S = 3.0  # for the connection and its first line, then for each echo
VISIT_S = 10.0
ECHOES = 5
MEASURE_S = 0.25
ARRIVAL_S = 2.0  # time for data to arrive over a slow link; only arrived data counts
BLOCK = bytes(256 * 1024)
WORD_BYTES = 16


class Listener:
    """The listening side. ``agent``: a random id that identifies it."""

    def __init__(self, word: str) -> None:
        self.agent = secrets.token_hex(8)
        self._word = word
        self._servers: list[asyncio.Server] = []

    async def open(self, addresses: Iterable[str]) -> dict[str, int]:
        """Listen on the addresses. Return the ports of those that it can listen on."""
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
                    pass  # Closing a socket with unread data would lose the reply.
        writer.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()


async def probe(address: str, port: int, agent: str, word: str) -> dict[str, Any]:
    """Return the fastest round trip to an agent (``ms``) and the local address as seen there, or
    the ``error``."""
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
        return {"error": f"no answer in {CONNECT_S:.0f} s"}
    except ConnectionRefusedError:
        return {"error": "connection refused"}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        return {"error": getattr(error, "strerror", None) or str(error) or type(error).__name__}


async def measure(address: str, port: int, word: str) -> dict[str, Any]:
    """Return the rate to a listener, of data sent during ``MEASURE_S``, ``stuck`` if no data
    arrives, or the ``error``."""
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
