"""Limits of this machine: copying memory, and passing bytes from one process to another over a unix
socket and over TCP. No exchange can be faster."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gossip.interpreter import spawn_context

REPETITIONS = 7
BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Median seconds to copy ``nbytes`` bytes, and to send them over each kind of socket."""

    nbytes: int
    copy_s: float
    unix_s: float
    tcp_s: float


def measure(nbytes: int) -> MachineLimits:
    """Measure the limits. For 100 MB this takes about a second."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return MachineLimits(
        nbytes,
        _median_s(lambda: np.copyto(target, source)),
        _socket_s(source, socket.AF_UNIX),
        _socket_s(source, socket.AF_INET),
    )


def _median_s(call: Callable[[], object]) -> float:
    took = []
    for _ in range(REPETITIONS + 1):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


def _socket_s(source: np.ndarray, family: int) -> float:
    """Return the median time to send ``source`` to another process, in seconds, from the first byte
    until the other process has received all bytes."""
    if family == socket.AF_UNIX:
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
    with spawn_context() as context:
        other = context.Process(target=_drain, args=(theirs, len(source)), daemon=True)
        other.start()
    theirs.close()
    try:
        with ours:
            ours.recv(1)  # received once the other process has started
            return _median_s(lambda: _send(ours, source))
    finally:
        other.join(10)
        other.kill()


def _send(ours: socket.socket, source: np.ndarray) -> None:
    ours.sendall(source.data)
    ours.recv(1)


def _drain(theirs: socket.socket, nbytes: int) -> None:
    """Reply with one byte whenever ``nbytes`` bytes have arrived, until the other side closes."""
    memory, filled = memoryview(bytearray(min(nbytes, BLOCK_BYTES))), 0
    with theirs:
        theirs.sendall(b".")
        while got := theirs.recv_into(memory[: min(len(memory), nbytes - filled)]):
            filled += got
            if filled == nbytes:
                filled = 0
                theirs.sendall(b".")
