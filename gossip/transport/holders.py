"""Who has a port that we want: for the words of an error, as far as the system lets us know."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

CONFIG_BYTES_MAX = 2**20
EVENTS = "events.jsonl"
"""Launcher and nodes of a run have this file open, in the run's folder or right below it."""


@dataclass(frozen=True, slots=True)
class PortHolder:
    """``run``: the name of the run that it is part of; "": of none that we know of."""

    pid: int
    command: str
    run: str
    up_s: float

    def __str__(self) -> str:
        what = f"gossip, run {self.run}" if self.run else self.command
        return f"pid {self.pid} ({what}, up {_duration(self.up_s)})"


def holder_of(port: int) -> PortHolder | None:
    """The process that listens on a TCP port of this machine; None: it cannot be known."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            listens = (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
            )
            if listens and connection.pid:
                process = psutil.Process(connection.pid)
                return PortHolder(
                    process.pid,
                    process.name(),
                    run_of(process.pid),
                    time.time() - process.create_time(),
                )
    except psutil.Error:
        return None  # not ours to see, or gone meanwhile
    return None


def run_of(pid: int) -> str:
    """The name of the run that a process writes down, by the files that it has open."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError, ValueError):
                path = Path(os.readlink(f"/proc/{pid}/fd/{number}"))
                if path.name == EVENTS:
                    folder = (
                        path.parent.parent if path.parent.name.startswith("peer-") else path.parent
                    )
                    return _name_in(folder)
    return ""


def _name_in(folder: Path) -> str:
    """What the settings of a run call it; else that of its folder. They may be another user's: no
    link is followed, and no pipe waited for."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        fd = os.open(
            folder / "config.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return str(json.loads(file.read(CONFIG_BYTES_MAX))["name"] or folder.name)
    return folder.name


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
