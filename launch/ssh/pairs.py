"""Whether two hosts reach each other, how fast, and under which address. Agents try it before
anything starts.

Each agent listens on all of its addresses, on ports that the system chooses, as peers do. A client
must know the token that the launcher gave to all agents. A listener sends the name of its agent,
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

CONNECT_S = 3.0
VISIT_S = 10.0
ECHOES = 5
MEASURE_S = 0.25
BLOCK = bytes(256 * 1024)
WORD_BYTES = 16


class Listener:
    """The listening side. ``agent``: a number drawn by it, which tells it from all others."""

    def __init__(self, word: str) -> None:
        self.agent = secrets.token_hex(8)
        self._word = word
        self._servers: list[asyncio.Server] = []

    async def open(self, addresses: Iterable[str]) -> dict[str, int]:
        """Ports by address; without those that it cannot listen on."""
        ports = {}
        for address in addresses:
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(self._visit, address, 0)
                self._servers.append(server)
                ports[address] = server.sockets[0].getsockname()[1]
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
                while what and (data := await reader.read(len(BLOCK))):
                    count += len(data)
                writer.write(
                    json.dumps({"bytes": count, "seconds": time.monotonic() - began}).encode()
                    + b"\n"
                )
                await writer.drain()
        writer.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()


async def probe(address: str, port: int, agent: str, word: str) -> dict[str, Any]:
    """Whether that agent answers there: ``ms`` of a round trip, and the own address as it was seen;
    or the ``error``."""
    try:
        async with asyncio.timeout(CONNECT_S), _visit(address, port, word) as (reader, writer):
            said = json.loads(await reader.readline())
            if said["agent"] != agent:
                return {"error": "another host has this address, too"}
            best = float("inf")
            for _ in range(ECHOES):
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
    """Bits a second from here to there, as many as arrive in ``MEASURE_S``; or the ``error``."""
    try:
        async with asyncio.timeout(VISIT_S), _visit(address, port, word) as (reader, writer):
            await reader.readline()
            until = time.monotonic() + MEASURE_S
            writer.write(b"b")
            while time.monotonic() < until:
                writer.write(BLOCK)
                await writer.drain()
            writer.write_eof()
            said = json.loads(await reader.readline())
            return {"mbit_s": float(said["bytes"]) * 8e-6 / float(said["seconds"])}
    except (OSError, EOFError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        return {"error": str(error) or type(error).__name__}


@contextlib.asynccontextmanager
async def _visit(address: str, port: int, word: str) -> Any:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(word.encode())
        yield reader, writer
    finally:
        writer.close()
