"""Strangers at a door, and doors that are none: whatever they send, the launcher's memory and
descriptors stay within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest
import zmq.asyncio
from test_door import asked, join_server_in, until
from zeromq_rig import GREETING, READY

from gossip.launch.registry import join_messages as says
from gossip.launch.registry.join_calls import JoinServerUnreachable, ask
from gossip.launch.registry.join_proxy import (
    BYTES_MAX,
    FRAMES_MAX,
    HELD_BYTES_MAX,
    VISITORS_MAX,
    FrameMeter,
    HeldBytes,
    LimitExceeded,
)
from gossip.launch.registry.join_server import JoinServer
from gossip.run.keys import make_pair, read_pair

MIB = 2**20
GROWTH_MAX = 96 * MIB  # what was measured without a bound: 1.8 GB in some seconds
MANY_PARTS = 1_500_000


def part(nbytes: int, more: int = 1) -> bytes:
    return (
        bytes([more, nbytes]) + bytes(nbytes)
        if nbytes < 256
        else bytes([more | 2]) + struct.pack(">Q", nbytes) + bytes(nbytes)
    )


class Grown:
    """The most by which this process has grown."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before, self.most = self._process.memory_info().rss, 0

    def look(self) -> int:
        self.most = max(self.most, self._process.memory_info().rss - self._before)
        return self.most


def pour(address: str, blob: bytes, nbytes: int) -> None:
    """Sends parts without end until so many bytes are gone, on connection after connection."""
    host, _, port = address.rpartition(":")
    sent = 0
    while sent < nbytes:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=30) as connection,
        ):
            connection.sendall(GREETING + READY)
            while sent < nbytes:
                sent += len(blob)  # also what is refused: it was sent
                connection.sendall(blob)


@asynccontextmanager
async def poured(join_server: JoinServer, blob: bytes, nbytes: int) -> AsyncIterator[Grown]:
    grown = Grown()
    pouring = asyncio.create_task(asyncio.to_thread(pour, join_server.address, blob, nbytes))
    while not pouring.done():
        grown.look()
        await asyncio.sleep(0.02)
    await pouring
    yield grown


@pytest.mark.parametrize(("size", "mib"), [(0, 16), (200, 192), (500_000, 512)])
async def test_a_message_without_end_takes_no_memory_and_the_door_answers_others(
    tmp_path: Path, size: int, mib: int
) -> None:
    blob = part(size) * max(1, 64 * 1024 // len(part(size)))
    async with (
        join_server_in(tmp_path / "a", (0,)) as join_server,
        poured(join_server, blob, mib * MIB) as grown,
    ):
        assert isinstance(await asked(join_server, says.RunQuery()), says.RunInfo)
        assert grown.look() < GROWTH_MAX, (
            f"{grown.most / MIB:.0f} MiB for {mib} MiB of parts of {size} bytes"
        )
        assert join_server.socket.refused == 0, "nothing of it was a question"


async def test_whole_questions_without_end_on_one_connection_are_cut_off(tmp_path: Path) -> None:
    blob = (part(8) + part(500_000, more=0)) * 2
    async with (
        join_server_in(tmp_path / "a", (0,)) as join_server,
        poured(join_server, blob, 256 * MIB) as grown,
    ):
        assert isinstance(await asked(join_server, says.RunQuery()), says.RunInfo)
        assert grown.look() < GROWTH_MAX


FLOOD = """
import sys, zmq
public, secret, address, count = sys.argv[1:]
socket = zmq.Context().socket(zmq.DEALER)
socket.set(zmq.CURVE_SERVERKEY, public.encode())
socket.set(zmq.CURVE_PUBLICKEY, public.encode())
socket.set(zmq.CURVE_SECRETKEY, secret.encode())
socket.set(zmq.IMMEDIATE, 1)
socket.connect(f"tcp://{address}")
for _ in range(int(count)):
    socket.send(b"", zmq.SNDMORE)
socket.send(b"")
print("sent", flush=True)
sys.stdin.read()
"""


async def test_who_has_the_key_cannot_send_very_many_parts_either(tmp_path: Path) -> None:
    key = tmp_path / "swarm.key"
    make_pair(key)
    pair = read_pair(key)
    async with join_server_in(tmp_path / "a", (0,), key=key) as join_server:
        grown = Grown()
        words = [
            sys.executable,
            "-c",
            FLOOD,
            pair.public,
            pair.secret,
            join_server.address,
            str(MANY_PARTS),
        ]
        child = await asyncio.create_subprocess_exec(
            *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert await child.stdout.readline() == b"sent\n"
        requests = join_server.socket
        await until(lambda: grown.look() >= GROWTH_MAX or requests._proxy.cut or requests.refused)
        child.stdin.close()
        await child.wait()
        assert (grown.look() < GROWTH_MAX, join_server.socket.refused) == (True, 0), (
            f"{grown.most / MIB:.0f} MiB"
        )
        context = zmq.asyncio.Context()
        assert isinstance(
            await ask(context, join_server.address, says.RunQuery(), 10.0, pair), says.RunInfo
        )
        context.destroy(0)


@pytest.mark.parametrize(
    "said",
    [b"", GREETING[:30], GREETING + READY],
    ids=["nothing", "half a greeting", "a handshake"],
)
async def test_very_many_connections_take_few_descriptors_and_keep_nobody_out(
    tmp_path: Path, said: bytes
) -> None:
    own = psutil.Process()
    async with join_server_in(tmp_path / "a", (0,)) as join_server:
        before, connections = own.num_fds(), []
        host, _, port = join_server.address.rpartition(":")

        def join_request() -> None:
            for _ in range(5 * VISITORS_MAX):
                connections.append(socket.create_connection((host, int(port)), timeout=30))
                connections[-1].sendall(said)

        await asyncio.to_thread(join_request)
        assert isinstance(await asked(join_server, says.RunQuery()), says.RunInfo)
        assert own.num_fds() - before - len(connections) <= 3 * VISITORS_MAX + 16
        for connection in connections:
            connection.close()


@contextmanager
def false_join_server(blob: bytes) -> Iterator[str]:
    """Speaks ZMTP, and then says ``blob`` for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5.0)
                    connection.sendall(GREETING + READY.replace(b"DEALER", b"ROUTER"))
                    while not over.is_set():
                        connection.sendall(blob)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def test_what_answers_without_end_where_a_door_should_be_takes_no_memory() -> None:
    context, grown = zmq.asyncio.Context(), Grown()
    with false_join_server(part(0) * 32 * 1024) as address:
        asking = asyncio.create_task(ask(context, address, says.RunQuery(), 3.0))
        while not asking.done():
            grown.look()
            await asyncio.sleep(0.01)
        assert grown.look() < GROWTH_MAX, f"{grown.most / MIB:.0f} MiB"
        with pytest.raises(
            JoinServerUnreachable, match="is longer than any reply of a join server"
        ):
            await asking
    context.destroy(0)


def taken(data: bytes, piece: int = 1) -> FrameMeter:
    meter = FrameMeter(HeldBytes())
    for at in range(0, len(data), piece):
        meter.count_bytes(data[at : at + piece])
    return meter


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_frames_are_counted_however_the_bytes_come(piece: int) -> None:
    question = part(8) + part(300, more=0)
    assert taken(GREETING + READY + question, piece).frames == 3
    assert (
        taken(GREETING + READY + part(8) + part(says.MESSAGE_BYTES_MAX, more=0), piece).frames == 3
    ), "the largest question"
    with pytest.raises(LimitExceeded):
        taken(GREETING + part(5) * (FRAMES_MAX + 1), piece)
    with pytest.raises(LimitExceeded):
        taken(GREETING + part(BYTES_MAX + 1)[:20], piece)


@pytest.mark.parametrize(
    "greeting",
    [
        b"\x01\x00" * 40,
        GREETING[:10] + b"\x01" + GREETING[11:],
        GREETING[:9] + b"\x7e" + GREETING[10:],
    ],
)
def test_older_framings_are_not_let_through(greeting: bytes) -> None:
    with pytest.raises(LimitExceeded):
        taken(greeting, len(greeting))


def test_many_connections_share_what_is_held_and_small_questions_get_through() -> None:
    held, large = HeldBytes(), GREETING + part(500_000, more=0)
    for _ in range(HELD_BYTES_MAX // len(large)):
        FrameMeter(held).count_bytes(large)
    with pytest.raises(LimitExceeded):
        FrameMeter(held).count_bytes(large)
    small = FrameMeter(held)
    small.count_bytes(GREETING + READY + part(8) + part(300, more=0))
    small.release_bytes()
