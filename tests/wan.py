"""A wide area network for tests: network namespaces behind a hub that delays and drops packets.

The hub is a process that holds a tun device of each host. ``python tests/wan.py`` is that process;
it reads rules as lines of JSON. A rule names a way: ``"*"`` (all), ``"0>*"``, ``"*>1"`` or
``"0>1"``; the later of these wins, field by field.

    delay_s, jitter_s     one way; jitter is drawn evenly and never reorders the packets of a way
    rate_bytes_s          of the way; queue_bytes wait at most, more are dropped (256 KiB)
    mtu                   larger packets vanish without a message (a black hole)
    drop                  all vanish
    loss                  each vanishes with this probability
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hosts import Hosts, ip

MTU = 1500
QUEUE_BYTES = 256 * 1024
READS = 64  # of a device before others get their turn
_NEW_NAMESPACE = 0x40000000  # CLONE_NEWNET
_TUN_SET_INTERFACE, _TUN_SET_OFFLOAD = 0x400454CA, 0x400454D0
_TUN_NO_INFO_WITH_HEADER = 0x0001 | 0x1000 | 0x4000
_SEGMENTS_LATER = 0x01 | 0x02 | 0x04
"""TCP segments are not cut and checksums not computed here: a packet has up to 64 KiB, and the hub
carries some Gbit/s."""
_HEADER = struct.Struct("<BBHHHH")  # virtio_net_hdr
FORWARDED_SEED = 5


class Wan(Hosts):
    """``count`` hosts, as ``Hosts``, joined by a hub in place of a switch."""

    def __init__(self, count: int, mtu: int = MTU) -> None:
        super().__init__(count)
        self.addresses = [f"10.78.0.{number + 1}" for number in range(count)]
        self._mtu = mtu
        self._rules: dict[str, dict[str, Any]] = {}
        self._hub: subprocess.Popen[str] | None = None

    def set_up(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ends = [f"{name}={to}" for name, to in zip(self.names, self.addresses, strict=True)]
        self._hub = subprocess.Popen(
            [sys.executable, __file__, str(self._mtu), *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._hub.stdout is not None
        if self._hub.stdout.readline() != "up\n":
            raise OSError("the hub did not start")

    def take_down(self) -> None:
        if self._hub is not None:
            self._hub.kill()
            self._hub.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def rule(self, way: str = "*", **fields: Any) -> None:
        """Replace the rule of a way. Return when the hub applies it."""
        assert self._hub is not None
        assert self._hub.stdin is not None
        assert self._hub.stdout is not None
        self._rules[way] = fields
        self._hub.stdin.write(json.dumps(self._rules) + "\n")
        self._hub.stdin.flush()
        assert self._hub.stdout.readline() == "done\n", "the hub has died"

    def cut(self, number: int) -> None:
        self.rule(f"{number}>*", drop=True)
        self.rule(f"*>{number}", drop=True)

    def heal(self, number: int) -> None:
        self.rule(f"{number}>*")
        self.rule(f"*>{number}")


@contextmanager
def wan(count: int, device_mtu: int = MTU, **everywhere: Any) -> Iterator[Wan]:
    """Hosts with a rule for all ways."""
    made = Wan(count, device_mtu)
    try:
        made.set_up()
        made.rule(**everywhere)
        yield made
    finally:
        made.take_down()


class Way:
    """Packets from one host to another."""

    def __init__(self, rule: dict[str, Any], rng: random.Random) -> None:
        self.rule, self._rng = rule, rng
        self._free_at = self._last_at = 0.0

    def arrival(self, now: float, nbytes: int, largest: int) -> float | None:
        """Return the arrival time of a packet of ``nbytes``; None if it is lost. ``largest``: bytes
        of its largest segment."""
        rule = self.rule
        if rule.get("drop") or largest > rule.get("mtu", largest):
            return None
        if rule.get("loss") and self._rng.random() < rule["loss"]:
            return None
        at = now
        if rate := rule.get("rate_bytes_s"):
            waits_s = max(0.0, self._free_at - now)
            if waits_s * rate > rule.get("queue_bytes", QUEUE_BYTES):
                return None
            self._free_at = at = now + waits_s + nbytes / rate
        at += rule.get("delay_s", 0.0) + self._rng.random() * rule.get("jitter_s", 0.0)
        self._last_at = max(self._last_at, at)
        return self._last_at


class Hub:
    """Carries packets between the devices of hosts."""

    def __init__(self, mtu: int, ends: list[tuple[str, str]]) -> None:
        self._rng = random.Random(FORWARDED_SEED)
        self._devices = [_open_device(name, address, mtu) for name, address in ends]
        self._numbers = {
            bytes(map(int, address.split("."))): number for number, (_, address) in enumerate(ends)
        }
        self._ways: dict[tuple[int, int], Way] = {}
        self._rules: dict[str, dict[str, Any]] = {}
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._sent = 0

    def run(self) -> None:
        os.nice(-15)  # a busy machine slows down peers, and not the network between them
        poll = select.epoll()
        sources = {device: number for number, device in enumerate(self._devices)}
        for fd in (*sources, sys.stdin.fileno()):
            poll.register(fd, select.EPOLLIN)
        print("up", flush=True)
        while True:
            first_at = self._under_way[0][0] if self._under_way else float("inf")
            for fd, _ in poll.poll(max(0.0, min(1.0, first_at - time.monotonic()))):
                if fd in sources:
                    self._receive(fd, sources[fd])
                elif line := sys.stdin.readline():
                    self._rules = json.loads(line)
                    for (source, target), way in self._ways.items():
                        way.rule = self._rule(source, target)
                    print("done", flush=True)
                else:
                    return  # the parent process has ended
            self._deliver(time.monotonic())

    def _rule(self, source: int, target: int) -> dict[str, Any]:
        ways = ("*", f"{source}>*", f"*>{target}", f"{source}>{target}")
        return {key: value for way in ways for key, value in self._rules.get(way, {}).items()}

    def _receive(self, device: int, source: int) -> None:
        for _ in range(READS):
            try:
                packet = os.read(device, 70_000)
            except BlockingIOError:
                return
            body = packet[_HEADER.size :]
            target = self._numbers.get(body[16:20]) if body[0] >> 4 == 4 else None
            if target is None:
                continue
            _, segmented, header_bytes, segment_bytes, _, _ = _HEADER.unpack_from(packet)
            largest = header_bytes + segment_bytes if segmented else len(body)
            way = self._ways.get((source, target))
            if way is None:
                way = self._ways[source, target] = Way(self._rule(source, target), self._rng)
            at = way.arrival(time.monotonic(), len(body), largest)
            if at is not None:
                self._sent += 1
                heapq.heappush(self._under_way, (at, self._sent, self._devices[target], packet))

    def _deliver(self, now: float) -> None:
        while self._under_way and self._under_way[0][0] <= now:
            _, _, device, packet = heapq.heappop(self._under_way)
            try:
                os.write(device, packet)
            except OSError as error:
                print(f"a packet is lost: {error}", file=sys.stderr)


def _open_device(name: str, address: str, mtu: int) -> int:
    """The hub's end of a device in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as ours, open(f"/run/netns/{name}") as namespace:
        _must_move(libc, namespace.fileno())
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(
            device,
            _TUN_SET_INTERFACE,
            struct.pack("16sH22s", b"eth0", _TUN_NO_INFO_WITH_HEADER, b""),
        )
        fcntl.ioctl(device, _TUN_SET_OFFLOAD, _SEGMENTS_LATER)
        _must_move(libc, ours.fileno())
    ip("-n", name, "link", "set", "eth0", "mtu", str(mtu), "txqueuelen", "4000", "up")
    ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
    return device


def _must_move(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


if __name__ == "__main__":
    Hub(int(sys.argv[1]), [tuple(end.split("=")) for end in sys.argv[2:]]).run()  # type: ignore[misc]
