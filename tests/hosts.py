"""Hosts for tests: network namespaces with an address each, joined by a switch; their cables can be
pulled for real.

A script moves in before it starts gossip (``MOVE_IN``): so one launcher starts the peers of all
hosts, and they share its files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import zygote

MOVE_IN = """
import ctypes, os

def move_in(host, address):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{host}") as namespace:
        if libc.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot move into {host}")
    os.environ["GOSSIP_LISTEN"] = address
"""


class Hosts:
    """``count`` hosts named ``self.names``, with the addresses ``self.addresses``. Use ``hosts``,
    which takes them down."""

    def __init__(self, count: int) -> None:
        self._switch = f"gsw{os.getpid()}"
        self.names = [f"gh{os.getpid()}x{number}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]

    def set_up(self) -> None:
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            ip("netns", "add", name)
            pair = f"eth0 netns {name} type veth peer name port{number} netns {self._switch}"
            ip("link", "add", *pair.split())
            ip("-n", self._switch, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")

    def take_down(self) -> None:
        for name in (self._switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self, number: int) -> None:
        """Pulls the cable of a host at the switch: what is sent vanishes,
        and no connection is told."""
        ip("-n", self._switch, "link", "set", f"port{number}", "down")

    def on(self, number: int) -> dict[str, str]:
        """What to add to the environment of a command of ``zygote`` that is to run on a host."""
        return {zygote.HOST: self.names[number]}

    def inside(self, number: int) -> list[str]:
        """What to put before a command that is to run on a host. Not ip netns exec, which mounts
        another /sys, without the control groups that some ask for."""
        return ["nsenter", f"--net=/run/netns/{self.names[number]}"]

    def kill_all(self, number: int) -> None:
        """Every process on a host, as when its power fails: many leave the tree of who started
        them, but not its network."""
        ours = os.stat(f"/run/netns/{self.names[number]}").st_ino
        found = 1
        while found:
            found = 0
            for process in psutil.process_iter():
                with contextlib.suppress(OSError, psutil.NoSuchProcess):  # gone meanwhile
                    if os.stat(f"/proc/{process.pid}/ns/net").st_ino == ours:
                        found += 1
                        process.kill()
                        process.wait(5.0)

    def narrow(self, number: int, mbit_s: int) -> None:
        """Its cable carries no more than that, in both directions."""
        limit = ("root", "tbf", "rate", f"{mbit_s}mbit", "burst", "64kb", "latency", "100ms")
        tc("-n", self.names[number], "qdisc", "replace", "dev", "eth0", *limit)
        tc("-n", self._switch, "qdisc", "replace", "dev", f"port{number}", *limit)

    def heal(self, number: int) -> None:
        ip("-n", self._switch, "link", "set", f"port{number}", "up")


def ip(*words: str) -> None:
    _must("ip", *words)


def tc(*words: str) -> None:
    """Of the same package as ip."""
    _must("tc", *words)


def _must(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    made = Hosts(count)
    try:
        made.set_up()
        yield made
    finally:
        made.take_down()


def why_no_hosts() -> str:
    """Why this machine lets us have none; "": it does."""
    if shutil.which("ip") is None:
        return "network namespaces need ip (the package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with hosts(1):
            return ""
    except OSError as error:
        return f"no network namespaces here: {error}"
