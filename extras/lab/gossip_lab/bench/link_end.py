"""One end of ``gossip bench links``: a transport for each way that payloads can take, and also a
bare TCP connection.

The command is one end. It starts the other, here or by a command such as ``ssh`` on another host.
The two exchange the turns in lines of JSON over its standard input and output.
"""

from __future__ import annotations

import json
import math
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from gossip.core import LinkUp, Payload, Ping, Received, Update
from gossip.errors import LocalError
from gossip.transport import EncodedTransport, KeyPair, Keys, ZeroMQTransport, is_loopback
from gossip.vectors import WireFormat, load_encoding

UNIX, TCP = "unix", "tcp"
RAW = "bare TCP"
RUN = b"linksrun"
SILENCE_S = 30.0
WINDOW = 4
"""Payloads in transfer at a time."""
UPDATE = Update(b"lineage1", 0, 0, 0, b"d" * 16, 32, None)


@dataclass(slots=True)
class TwoKeys:
    """The keys of both ends: the own pair, and the other's public key."""

    pair: KeyPair
    other: str
    local: int
    version: int = 0

    def key_of(self, peer: int) -> str | None:
        return None if peer == self.local else self.other

    def peer_of(self, key: str) -> int | None:
        return 1 - self.local if key == self.other else None

    def not_allowed(self, key: str) -> tuple[str, str] | None:
        return None

    def outside(self) -> dict[int, str]:
        return {}

    def refresh(self) -> None:
        """Do nothing: no peer joins."""


@dataclass(slots=True)
class Ways:
    """The transports of one end, and how payloads are written in this turn."""

    local: int
    host: str
    keys: Keys | None
    wire: WireFormat | None = None
    transports: dict[str, EncodedTransport] = field(default_factory=dict)

    def open(self) -> None:
        import torch

        torch.set_num_threads(1)  # as in a node
        if is_loopback(self.host):
            self._add(UNIX, same_host=True)
        self._add(TCP, keys=self.keys)

    def _add(self, way: str, **options: Any) -> None:
        inner = ZeroMQTransport(
            RUN, self.local, 0, lambda sender, message: self._nbytes(), self.host, **options
        )
        self.transports[way] = EncodedTransport(inner, lambda: self.wire)

    def _nbytes(self) -> int:
        return -1 if self.wire is None else self.wire.update_bytes[0]

    @property
    def addresses(self) -> dict[str, tuple[str, str]]:
        return {way: (one.control, one.bulk) for way, one in self.transports.items()}

    def connect(self, addresses: Mapping[str, Sequence[str]], within_s: float = 30.0) -> bool:
        """Poll until the own links are up. The other end's ``poll`` admits this one, so both go on
        polling until both are done."""
        for way, one in self.transports.items():
            one.connect(1 - self.local, *addresses[way])
        up: set[str] = set()
        until = time.monotonic() + within_s
        while len(up) < len(self.transports) and time.monotonic() < until:
            for way, one in self.transports.items():
                if any(isinstance(arrival, LinkUp) for arrival in one.poll(0.01)):
                    up.add(way)
        return len(up) == len(self.transports)

    def poll_until(self, replies: IO[str]) -> None:
        """Poll until the other end has sent a line, or has ended."""
        while not select.select([replies], [], [], 0)[0]:
            for one in self.transports.values():
                one.poll(0.005)

    def close(self) -> None:
        for one in self.transports.values():
            one.close()


def wire_of(encoding: str, numbers: int) -> WireFormat:
    """Return the wire format of ``numbers`` as one matrix with about as many rows as columns, and a
    vector of the remainder."""
    columns = math.isqrt(numbers)
    rows, rest = divmod(numbers, columns)
    shapes = ((rows, columns), *([(rest,)] if rest else []))
    return WireFormat(load_encoding(encoding), 0, (numbers,), numbers, 2, shapes)


class OtherEnd:
    """The other process: it replies to each payload, and each ping, with a ping."""

    def __init__(self, orders: IO[str], answers: IO[str]) -> None:
        self._orders, self._answers = orders, answers

    def send_reply(self, **what: Any) -> None:
        print(json.dumps(what), file=self._answers, flush=True)

    def read_order(self) -> dict[str, Any]:
        line = self._orders.readline()
        if not line:
            raise SystemExit(0)  # the command has ended
        order: dict[str, Any] = json.loads(line)
        return order

    def run(self) -> None:
        order = self.read_order()
        ways = Ways(1, order["host"], TwoKeys(KeyPair(*order["pair"]), order["other"], 1))
        ways.open()
        listener = socket.create_server((order["host"], 0))
        self.send_reply(addresses=ways.addresses, raw=listener.getsockname())
        linked = ways.connect(self.read_order()["addresses"])
        raw, _ = listener.accept()
        self.send_reply(linked=linked)
        ways.poll_until(self._orders)
        while (turn := self.read_order())["way"] is not None:
            self._turn(ways, raw, turn)
        ways.close()

    def _turn(self, ways: Ways, raw: socket.socket, turn: dict[str, Any]) -> None:
        way, count, numbers = turn["way"], turn["count"], turn["numbers"]
        began_s = time.process_time()
        if way == RAW:
            self.send_reply(ready=True)
            drain(raw, 4 * numbers, count)
        else:
            ways.wire = wire_of(turn["encoding"], numbers)
            self.send_reply(ready=True)
            self._answer(ways.transports[way], count)
        self.send_reply(cpu_s=time.process_time() - began_s)

    def _answer(self, one: EncodedTransport, count: int) -> None:
        # A reply that finds no room is owed: an end that waited for room would miss arrivals.
        received = owed = 0
        while received < count or owed:
            arrived = sum(
                isinstance(arrival, Received) for arrival in one.poll(0.001 if owed else 0.05)
            )
            received, owed = received + arrived, owed + arrived
            while owed and one.send(0, Ping(0, 0, ())):
                owed -= 1


def drain(connection: socket.socket, nbytes: int, count: int) -> None:
    """Receive ``nbytes`` ``count`` times, and reply to each with a byte."""
    memory = memoryview(bytearray(nbytes))
    for _ in range(count):
        filled = 0
        while filled < nbytes:
            got = connection.recv_into(memory[filled:])
            if not got:
                raise SystemExit(0)
            filled += got
        connection.sendall(b".")


def send_payloads(one: EncodedTransport, wire: WireFormat, vector: np.ndarray, count: int) -> float:
    """Return the seconds until ``count`` payloads have a reply. Each is encoded anew, as each
    update is.

    Raises: LocalError: No reply arrives for 30 s, as after a broken link.
    """
    sent = answered = 0
    began = last_reply = time.perf_counter()
    while answered < count:
        while sent < count and sent - answered < WINDOW:
            raw = wire.encode(vector, "update", 0, 0)
            payload = Payload(vector, len(raw), True, encoded=raw)
            if not one.send(1, UPDATE, payload):
                break
            sent += 1
        arrived = sum(isinstance(arrival, Received) for arrival in one.poll(1.0))
        answered, now = answered + arrived, time.perf_counter()
        if arrived:
            last_reply = now
        elif now - last_reply > SILENCE_S:
            raise LocalError(f"the other end has sent no reply for {SILENCE_S:.0f} s")
    return time.perf_counter() - began


def send_pings(one: EncodedTransport, count: int) -> float:
    """Return the seconds a round trip."""
    began = time.perf_counter()
    for _ in range(count):
        while not one.send(1, Ping(1, 1, ())):
            one.poll(0.01)
        while not any(isinstance(arrival, Received) for arrival in one.poll(1.0)):
            continue
    return (time.perf_counter() - began) / count


if __name__ == "__main__":
    OtherEnd(sys.stdin, sys.stdout).run()
