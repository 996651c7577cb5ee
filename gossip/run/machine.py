"""Identity of a process. A pid alone does not identify a process, because a pid is valid on one
machine only, and is reused. A node records its process, and later its end, in ``peer-N/peer.json``.
So it can be checked whether a run without a launcher (torchrun) is still running.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError

from .records import WriteFailures
from .telemetry import write_json
from .untrusted import read_object, real, text_of, whole

FILE = "peer.json"


def this_machine() -> str:
    """Return an id of this boot and pid namespace. The id differs between containers of one
    machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def started_at(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot. Start time and pid identify
    the process. Return None if there is no such process, or if it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command name may contain ") "
    return None if fields[0] in "ZX" else int(fields[19])


class NodeLife:
    """Writer of a node's ``peer.json``. If ``folder`` is None, nothing is written."""

    def __init__(self, folder: Path | None, troubles: WriteFailures) -> None:
        self._folder, self._troubles = folder, troubles
        self._fields: dict[str, Any] = {}

    def begins(self, incarnation: int, trainer_pid: int) -> None:
        """Record that this process is the node from now on."""
        self._fields = {
            "schema": "gossip.peer/1",
            "incarnation": incarnation,
            "pid": os.getpid(),
            "trainer_pid": trainer_pid,
            "started": started_at(os.getpid()),
            "machine": this_machine(),
            "host": socket.gethostname(),
            "since": time.time(),
            "ended": None,
            "exit_code": None,
        }
        self._write()

    def ends(self, exit_code: int) -> None:
        """Record that the node has ended properly."""
        self._fields |= {"ended": time.time(), "exit_code": exit_code}
        self._write()

    def _write(self) -> None:
        if self._folder is not None:
            path = self._folder / FILE
            self._troubles.try_to(path, lambda: write_json(path, self._fields))


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Record of a process of a run.

    Attributes:
        started: Start time in clock ticks since boot. Together with the pid it identifies one
            process.
        machine: Id of the machine to which the pid belongs.
        since: Start of the process, in seconds since 1970.
        ended: End of its work, in seconds since 1970; 0.0 if the process has not recorded it.
    """

    pid: int
    started: int
    machine: str
    host: str
    since: float
    ended: float

    @property
    def here(self) -> bool:
        """Whether the process was started on this machine, since its last boot."""
        return self.machine == this_machine()

    @property
    def alive(self) -> bool:
        """Whether the process runs on this machine, and has not recorded its end."""
        return not self.ended and self.here and started_at(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class NodeRecord(ProcessRecord):
    """Content of a node's ``peer.json``. ``exit_code`` is None if the node has not recorded its
    end."""

    exit_code: int | None


def node_in(folder: Path) -> NodeRecord | None:
    """Return the record of a node in its peer's folder; None if there is no valid record."""
    try:
        fields = read_object(folder, FILE) or {}
    except ConfigError:
        return None
    pid, started = whole(fields.get("pid")), whole(fields.get("started"))
    since, machine = real(fields.get("since")), fields.get("machine")
    if not pid or started is None or since is None or not isinstance(machine, str):
        return None
    host, ended = text_of(fields.get("host")) or "", real(fields.get("ended")) or 0.0
    return NodeRecord(pid, started, machine, host, since, ended, whole(fields.get("exit_code")))
