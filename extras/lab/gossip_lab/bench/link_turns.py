"""The turns of ``gossip bench links``: this end of all ways, and the process that is the other."""

from __future__ import annotations

import json
import shlex
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from gossip.errors import LocalError
from gossip.interpreter import python_command
from gossip.transport import new_pair

from . import limits
from .link_end import (
    RAW,
    TCP,
    UNIX,
    TwoKeys,
    Ways,
    send_payloads,
    send_pings,
    wire_of,
)
from .turns import Spread, draw, in_order, progress, ratios

TURN_BYTES = 32 * 2**20
PINGS = 100
PLAIN = "float32"
MIB = 2**20
NAMES = {
    UNIX: "unix sockets",
    TCP: "TCP",
    RAW: "limit: bare TCP",
}


class LinkTurns:
    """This end, and the process that is the other."""

    def __init__(self, host: str, other_host: str, via: str) -> None:
        self.host, self.other_host = host, other_host
        self._mine, self._theirs = new_pair(), new_pair()
        self.ways = Ways(0, self.host, TwoKeys(self._mine, self._theirs.public, 0))
        command = [*shlex.split(via), *python_command("-m", "gossip_lab.bench.link_end")]
        self.other = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> LinkTurns:
        try:
            self._meet()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *about: object) -> None:
        # Open sockets that are left to the garbage collector may keep this process waiting for
        # ever.
        self.ways.close()
        self.other.terminate()
        try:
            self.other.wait(10)
        except subprocess.TimeoutExpired:
            self.other.kill()
            self.other.wait()

    def _meet(self) -> None:
        theirs = self._theirs
        pair = [theirs.public, theirs.secret]
        self._send_order(host=self.other_host, pair=pair, other=self._mine.public)
        self.ways.open()
        reply = self._read_reply()
        self._send_order(addresses=self.ways.addresses)
        self.raw = socket.create_connection(tuple(reply["raw"]))
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        linked = self.ways.connect(reply["addresses"])
        assert self.other.stdout is not None
        self.ways.poll_until(self.other.stdout)
        if not (self._read_reply()["linked"] and linked):
            raise LocalError("the two ends do not reach each other")

    def _send_order(self, **what: Any) -> None:
        assert self.other.stdin is not None
        try:
            self.other.stdin.write(json.dumps(what) + "\n")
            self.other.stdin.flush()
        except BrokenPipeError:
            raise LocalError("the other end has ended") from None

    def _read_reply(self) -> dict[str, Any]:
        assert self.other.stdout is not None
        line = self.other.stdout.readline()
        if not line:
            raise LocalError("the other end has ended")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def one_by_one(self, numbers: int, count: int) -> list[float]:
        """Return the seconds of each of ``count`` payloads of this many numbers, until its reply:
        over unix sockets on one host, over TCP between two."""
        way = UNIX if UNIX in self.ways.transports else TCP
        vector = np.zeros(numbers, np.float32)
        self._order(way, PLAIN, numbers, count)
        link, wire = self.ways.transports[way], wire_of(PLAIN, numbers)
        taken = [send_payloads(link, wire, vector, 1) for _ in range(count)]
        self._read_reply()
        return taken

    # --- turns ------------------------------------------------------------------------------------

    def table(
        self, numbers: int, encodings: list[str], repetitions: int, quiet: bool
    ) -> dict[str, Any]:
        """Return the table of all ways and encodings with updates of this many numbers."""
        vector = np.random.default_rng(0).standard_normal(numbers).astype(np.float32)
        count = max(4, min(64, TURN_BYTES // vector.nbytes))
        ways = [
            (way, encoding)
            for encoding in dict.fromkeys([PLAIN, *encodings])
            for way in self.ways.transports
        ]
        ways.append((RAW, PLAIN))
        speeds: dict[str, list[float]] = {_key(*each): [] for each in ways}
        costs: dict[str, list[float]] = {key: [] for key in speeds}
        trips: dict[str, list[float]] = {way: [] for way in self.ways.transports}
        for turn in range(repetitions + 1):
            progress(f"{numbers:,} numbers: turn {turn} of {repetitions}")
            for key in in_order(list(speeds), turn):
                way, encoding = dict(zip(speeds, ways, strict=True))[key]
                took_s, cpu_s = self._turn(way, encoding, vector, count)
                if turn:
                    speeds[key].append(count * vector.nbytes / took_s / MIB)
                    costs[key].append(1e3 * cpu_s * MIB / (count * vector.nbytes))
            for way in trips:
                self._order(way, PLAIN, numbers, PINGS)
                took_s = send_pings(self.ways.transports[way], PINGS)
                self._read_reply()
                if turn:
                    trips[way].append(1e6 * took_s)
        progress("")
        found = self._found(numbers, ways, speeds, trips)
        for row, spent in zip(found["rows"], costs.values(), strict=True):
            row["cpu_ms_per_mib"] = statistics.median(spent)
        _show(found, sys.stderr if quiet else sys.stdout)
        return found

    def _order(self, way: str, encoding: str, numbers: int, count: int) -> None:
        self.ways.wire = wire_of(encoding, numbers)
        self._send_order(way=way, encoding=encoding, numbers=numbers, count=count)
        self._read_reply()

    def _turn(self, way: str, encoding: str, vector: np.ndarray, count: int) -> tuple[float, float]:
        """Return the duration, and the processor time of both ends, in seconds."""
        self._order(way, encoding, len(vector), count)
        began_s = time.process_time()
        if way == RAW:
            took_s = self._bare(vector, count)
        else:
            took_s = send_payloads(
                self.ways.transports[way], wire_of(encoding, len(vector)), vector, count
            )
        cpu_s = time.process_time() - began_s
        return took_s, cpu_s + float(self._read_reply()["cpu_s"])

    def _bare(self, vector: np.ndarray, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self.raw.sendall(vector.data)
        for _ in range(count):
            self.raw.recv(1)
        return time.perf_counter() - began

    def _found(
        self,
        numbers: int,
        ways: list[tuple[str, str]],
        speeds: dict[str, list[float]],
        trips: dict[str, list[float]],
    ) -> dict[str, Any]:
        rows = []
        bare = speeds[_key(RAW, PLAIN)]
        for way, encoding in ways:
            figures = speeds[_key(way, encoding)]
            rows.append(
                {
                    "way": way,
                    "encoding": encoding,
                    "mib_per_s": asdict(Spread.of(figures)),
                    "of_bare_tcp": ratios(figures, bare).median,
                    "bytes_a_number": wire_of(encoding, numbers).update_bytes[0] / numbers,
                    "round_trip_us": statistics.median(trips[way]) if way in trips else None,
                    "turns": figures,
                }
            )
        return {
            "numbers": numbers,
            "host": self.host,
            "other_host": self.other_host,
            "limits": asdict(limits.measure(4 * numbers)),
            "rows": rows,
        }


def _key(way: str, encoding: str) -> str:
    return f"{way}/{encoding}"


def _show(found: dict[str, Any], out: Any) -> None:
    best = found["limits"]
    speed = 4 * found["numbers"] / MIB
    title = (
        f"{found['numbers']:,} numbers ({speed:.0f} MiB in float32), {found['host']} to "
        f"{found['other_host']}; limits here: copy {speed / best['copy_s']:,.0f} MiB/s, unix "
        f"socket {speed / best['unix_s']:,.0f}, TCP {speed / best['tcp_s']:,.0f}"
    )
    columns = (
        *("way", "encoding", "MiB/s (least to most)", "of bare TCP", "CPU ms/MiB"),
        *("bytes", "round trip us"),
    )
    rows = []
    for row in found["rows"]:
        figures, trip = row["mib_per_s"], row["round_trip_us"]
        rows.append(
            (
                NAMES[row["way"]],
                row["encoding"],
                f"{figures['median']:,.0f} ({figures['least']:,.0f} to {figures['most']:,.0f})",
                f"{row['of_bare_tcp']:.2f}",
                f"{row['cpu_ms_per_mib']:.2f}",
                f"{row['bytes_a_number']:.3g}",
                "" if trip is None else f"{trip:,.0f}",
            )
        )
    draw(title, columns, rows, out)
