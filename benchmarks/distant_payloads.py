"""Payloads between distant hosts, with keys, compared with a plain TCP stream over the same link.

    sudo python benchmarks/distant_payloads.py                    # 4 round trips, 2 rates
    sudo python benchmarks/distant_payloads.py --round-trips 100 --mbit 200 --turns 5

The hosts are network namespaces behind a hub that delays packets (tests/wan.py). A stream runs for
``--seconds``. Its rate is measured in the second half, when the TCP windows have grown. Turns of
gossip and of the plain stream alternate, and the table has the median of the ratios. Needs root and
/dev/net/tun.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from hosts import why_no_hosts
from wan import Wan, wan
from zeromq_rig import Known, floats, transport, update

from gossip.core.events import Received
from gossip.transport.curve import KeyPair

PAYLOAD_BYTES = 8 * 2**20
PORT = 5000
SIDES = ("tcp", "gossip")


class RateMeter:
    """Meter of received bytes over time. The rate is measured in the second half of the time."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def add(self, nbytes: int) -> None:
        """Record that ``nbytes`` bytes in total have arrived so far."""
        if nbytes > (self._marks[-1][1] if self._marks else 0):
            self._marks.append((time.monotonic(), nbytes))

    def mbit_s(self) -> float:
        begin, end = self._marks[0][0], self._marks[-1][0]
        half = [mark for mark in self._marks if mark[0] >= (begin + end) / 2]
        return (half[-1][1] - half[0][1]) * 8e-6 / (half[-1][0] - half[0][0])


def receive_tcp(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        print("up", flush=True)
        end, _ = server.accept()
        meter, count = RateMeter(), 0
        while data := end.recv(2**20):
            count += len(data)
            meter.add(count)
    print(meter.mbit_s())


def send_tcp(target: str, seconds: float) -> None:
    block, until = bytes(2**20), time.monotonic() + seconds
    with socket.create_connection((target, PORT)) as end:
        while time.monotonic() < until:
            end.sendall(block)


def receive_gossip(address: str, known: Known, seconds: float) -> None:
    one = transport(1, PAYLOAD_BYTES, host=address, keys=known.of(1), control_port=PORT)
    print(one.bulk, flush=True)
    meter, until = RateMeter(), time.monotonic() + seconds + 3600
    while time.monotonic() < until:
        if any(isinstance(arrival, Received) for arrival in one.poll(0.01)):
            until = min(until, time.monotonic() + seconds)
        meter.add(one.traffic.received_bytes)
    one.close()
    print(meter.mbit_s())


def send_gossip(address: str, target: str, bulk: str, known: Known, seconds: float) -> None:
    one = transport(2, PAYLOAD_BYTES, host=address, keys=known.of(2))
    one.connect(1, f"tcp://{target}:{PORT}", bulk)
    payload, until = floats(PAYLOAD_BYTES), 0.0
    sent = 0
    while not until or time.monotonic() < until:
        while one.send(1, update(sent), payload):
            sent, until = sent + 1, until or time.monotonic() + seconds
        one.poll(0.005)
    one.close()


def play(on: Wan, side: str, seconds: float) -> float:
    """Return the rate of one stream from host 1 to host 0, in Mbit/s."""
    pairs = {peer: (pair.public, pair.secret) for peer, pair in Known((1, 2)).pairs.items()}
    command = [sys.executable, __file__, "--side", side, "--seconds", str(seconds)]
    command += ["--pairs", json.dumps(pairs)]
    receiver = subprocess.Popen(
        [*on.inside(0), *command, "--address", on.addresses[0]], stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    bulk = receiver.stdout.readline().strip()
    target = ["--address", on.addresses[1], "--target", on.addresses[0], "--bulk", bulk]
    subprocess.run([*on.inside(1), *command, *target], check=True)
    rate = float(receiver.stdout.read())
    receiver.wait()
    return rate


def known_of(pairs: str) -> Known:
    known = Known(())
    for peer, (public, secret) in json.loads(pairs).items():
        known.pairs[int(peer)] = KeyPair(public, secret)
        known.list(int(peer), public)
    return known


def play_side(args: argparse.Namespace) -> None:
    """Run one end of a stream."""
    if args.side == "tcp" and args.target:
        send_tcp(args.target, args.seconds)
    elif args.side == "tcp":
        receive_tcp(args.address)
    elif args.target:
        known = known_of(args.pairs)
        send_gossip(args.address, args.target, args.bulk, known, args.seconds)
    else:
        receive_gossip(args.address, known_of(args.pairs), args.seconds)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--round-trips", type=float, nargs="+", default=[20, 100, 200, 400], help="ms"
    )
    parser.add_argument("--mbit", type=float, nargs="+", default=[200, 1000])
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of a stream")
    parser.add_argument("--turns", type=int, default=3)
    for hidden in ("--side", "--pairs", "--address", "--target", "--bulk"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = parse_options()
    if args.side:
        play_side(args)
        return 0
    if why := why_no_hosts():
        print(f"cannot measure: {why}", file=sys.stderr)
        return 2
    print("| round trip, ms | link, Mbit/s | TCP | gossip | ratio |\n|---|---|---|---|---|")
    for round_trip_ms in args.round_trips:
        for mbit_s in args.mbit:
            # a queue of one round trip, as in routers
            queue = max(2**18, round(mbit_s * 125 * round_trip_ms))
            rule = {
                "delay_s": round_trip_ms / 2000,
                "rate_bytes_s": mbit_s * 125_000,
                "queue_bytes": queue,
            }
            rates: dict[str, list[float]] = {side: [] for side in SIDES}
            with wan(2, **rule) as on:
                for _ in range(args.turns):
                    for side in SIDES:
                        rates[side].append(play(on, side, args.seconds))
            ratio = statistics.median(np.divide(rates["gossip"], rates["tcp"]))
            tcp, gossip = (statistics.median(rates[side]) for side in SIDES)
            print(
                f"| {round_trip_ms:g} | {mbit_s:g} | {tcp:.0f} | {gossip:.0f} | {ratio:.2f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
