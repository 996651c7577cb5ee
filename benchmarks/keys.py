"""What keys cost: payloads, round trips and whole training with them over without, between
processes of one machine.

    python benchmarks/keys.py                             # lanes: three ways, 15 interleaved turns
                                                          # of each size
    python benchmarks/keys.py --training --repetitions 5  # and steps per second of `gossip run`
                                                          # with and without

Two processes hold a pair of transports each way: unix sockets (one host without keys), TCP without
keys (several hosts, insecure) and TCP with keys. The ways take turns, in the other order every
other time, so that whatever else the machine does meets all of them. Printed are medians, and the
median of the ratios within a turn: that one stands still where the machine's speed does not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from ddp import HERE, TRAIN, Failed, ask_to_end, environment, last_words, run_all

from gossip.core.events import LinkUp, Payload, Received
from gossip.core.messages import Ping, Update
from gossip.transport.curve import KeyPair, Keys, new_pair
from gossip.transport.zeromq import ZeroMQTransport

WAYS = ("unix", "tcp", "keys")
NAMES = {"unix": "unix sockets", "tcp": "TCP without keys", "keys": "TCP with keys"}
SIZES = (69_000, 2**20, 8 * 2**20)
TURN_BYTES = 128 * 2**20
PINGS = 300
# on a busy machine the others may have their last round before peer 0,
# which then has nothing to tell
TRIES = 3
RUN = b"keyscost"


class TwoKeys:
    """Keys of a sender, 0, and a receiver, 1."""

    version = 0

    def __init__(self, pair: KeyPair, other: str, local: int) -> None:
        self.pair, self._other, self._local = pair, other, local

    def key_of(self, peer: int) -> str | None:
        return None if peer == self._local else self._other

    def peer_of(self, key: str) -> int | None:
        return 1 - self._local if key == self._other else None

    def not_allowed(self, key: str) -> tuple[str, str] | None:
        return None

    def outside(self) -> dict[int, str]:
        return {}

    def look(self) -> None:
        pass


def transports(local: int, size: int, pair: KeyPair, other: str) -> dict[str, ZeroMQTransport]:
    def make(**options: Any) -> ZeroMQTransport:
        return ZeroMQTransport(RUN, local, 0, lambda sender, message: size, **options)

    keys: Keys = TwoKeys(pair, other, local)
    return {"unix": make(same_host=True), "tcp": make(), "keys": make(keys=keys)}


def link(
    ways: Mapping[str, ZeroMQTransport],
    peer: int,
    addresses: Mapping[str, tuple[str, str]],
    pipe: Connection,
) -> None:
    """Until both sides have all links: who is let in is looked up by the other side's ``poll``, so
    neither may stop before."""
    for way, one in ways.items():
        one.connect(peer, *addresses[way])
    up: set[str] = set()
    while len(up) < len(ways):
        for way, one in ways.items():
            if any(isinstance(arrival, LinkUp) for arrival in one.poll(0.01)):
                up.add(way)
    pipe.send("linked")
    while not pipe.poll():
        for one in ways.values():
            one.poll(0.01)
    pipe.recv()


def receive(pipe: Connection, size: int, pair: KeyPair, other: str) -> None:
    """Answers each payload, and each ping, with a ping. Told the next way by the pipe."""
    ways = transports(1, size, pair, other)
    pipe.send({way: (one.control, one.bulk) for way, one in ways.items()})
    link(ways, 0, pipe.recv(), pipe)
    one, owed = ways["unix"], 0
    while True:
        if pipe.poll():
            told = pipe.recv()
            if told is None:
                break
            one = ways[told]
            pipe.send(told)
        # What cannot be answered at once is owed:
        # whoever waits for room would miss what comes meanwhile.
        owed += sum(
            isinstance(arrival, Received)
            for arrival in one.poll(0.001 if owed else 0.05, (pipe.fileno(),))
        )
        while owed and one.send(0, Ping(0, 0, ())):
            owed -= 1
    for one in ways.values():
        one.close()


def turn(
    one: ZeroMQTransport, count: int, message: Any, payload: Payload | None, window: int
) -> float:
    """Seconds for ``count`` messages to be answered,
    of which ``window`` are under way at a time."""
    sent = answered = 0
    began = time.perf_counter()
    while answered < count:
        while sent < count and sent - answered < window and one.send(1, message, payload):
            sent += 1
        answered += sum(isinstance(arrival, Received) for arrival in one.poll(1.0))
    return time.perf_counter() - began


def lanes(size: int, turns: int) -> list[dict[str, Any]]:
    mine, theirs = new_pair(), new_pair()
    ours, pipe = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=receive, args=(pipe, size, theirs, mine.public), daemon=True
    )
    child.start()
    ways = transports(0, size, mine, theirs.public)
    addresses = ours.recv()
    ours.send({way: (one.control, one.bulk) for way, one in ways.items()})
    link(ways, 1, addresses, ours)
    payload = Payload(np.random.default_rng(0).random(size // 4, np.float32), size)
    count = max(8, TURN_BYTES // size // 4)
    rows = []
    for number in range(turns + 1):
        row: dict[str, Any] = {"size": size}
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            ours.send(way)
            ours.recv()
            row[way] = (
                size
                * count
                / turn(
                    ways[way], count, Update(b"lineage1", 0, 0, 0, b"d" * 16, 32, 0.5), payload, 4
                )
                / 2**20
            )
            row[f"{way} round trip"] = turn(ways[way], PINGS, Ping(1, 1, ()), None, 1) / PINGS * 1e6
        if number:  # the first one warms up
            rows.append(row)
    ours.send(None)
    for one in ways.values():
        one.close()
    child.join()
    return rows


def ratio(rows: Sequence[Mapping[str, Any]], over: str, under: str) -> float:
    ratios: list[float] = [row[over] / row[under] for row in rows]
    return statistics.median(ratios)


def steps_per_s(options: argparse.Namespace, keys: str) -> float:
    """Of one run, as peer 0 tells. Raises: Failed."""
    log = ""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="gossip-bench-") as folder:
            result = Path(folder, "result.json")
            command = [
                sys.executable,
                "-m",
                "gossip.launch.cli",
                "run",
                "-n",
                str(options.peers),
                keys,
            ]
            command += ["--start-timeout", "250"]
            command += [
                "--aggregator",
                "mean",
                "--run-dir",
                str(Path(folder, "run")),
                str(TRAIN),
                "--exchange",
                "gossip",
            ]
            command += ["--steps", str(options.steps), "--result", str(result)]
            run_all(
                [(command, environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path])))],
                Path(folder, "log"),
            )
            if result.exists():
                return float(json.loads(result.read_text())["steps_per_s"])
            log = last_words(Path(folder, "log"))
    raise Failed(f"peer 0 did not come to its end\n{log}")


def training(options: argparse.Namespace) -> list[dict[str, Any]]:
    sides = {"without": "--no-keys", "with": "--keys"}
    rows = []
    for number in range(options.repetitions + 1):
        row = {
            side: steps_per_s(options, sides[side])
            for side in (sides if number % 2 == 0 else reversed(sides))
        }
        if number:
            rows.append(row)
            print(
                f"  turn {number}: {row['without']:.0f} without, {row['with']:.0f} with keys",
                flush=True,
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=15, help="measured turns of each way and size")
    parser.add_argument("--training", action="store_true", help="also whole runs")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=5, help="measured pairs of runs")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, ask_to_end)
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "lanes": [], "training": []}
    print(f"{found['cores']} cores; medians of {options.turns} turns")
    for size in SIZES:
        rows = lanes(size, options.turns)
        found["lanes"] += rows
        print(f"payloads of {size:,} bytes")
        for way in WAYS:
            middle, low, high = (
                statistics.median(r[way] for r in rows),
                min(r[way] for r in rows),
                max(r[way] for r in rows),
            )
            trip = statistics.median(row[f"{way} round trip"] for row in rows)
            print(
                f"  {NAMES[way]:18}{middle:8.0f} MiB/s ({low:.0f} to {high:.0f}){trip:8.0f} us a "
                "round trip of pings"
            )
        over_tcp, over_unix = ratio(rows, "keys", "tcp"), ratio(rows, "keys", "unix")
        print(f"  with keys over TCP without: {over_tcp:.2f}; over unix sockets: {over_unix:.2f}")
    if options.training:
        print(
            f"steps per second of gossip run, {options.peers} peers, rolling, mean, 17,226 "
            "parameters"
        )
        rows = found["training"] = training(options)
        for side in ("without", "with"):
            print(f"  {side:8} keys {statistics.median(row[side] for row in rows):8.0f} steps/s")
        print(f"  with keys over without: {ratio(rows, 'with', 'without'):.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
