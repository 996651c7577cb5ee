"""Who runs a run: each launcher says so in the run's folder, so that it is found by pid and start, never by name."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gossip.telemetry import read_json, write_json

from .guardian import stat

FOLDER = "launchers"


@dataclass(frozen=True, slots=True)
class Launcher:
    """A process that has started peers of a run.

    Attributes:
        started: Clock ticks since boot: with the pid it means one process and no other.
        machine: Where that pid means something.
        user: Its user id.
        since: When it began; seconds of the epoch.
        peers: Which it has started.
        ended: When its last peer was gone; 0.0: they are not, or it was killed.
    """

    pid: int
    started: int
    machine: str
    host: str
    user: int
    since: float
    peers: tuple[int, ...]
    ended: float = 0.0

    @property
    def here(self) -> bool:
        """Whether it was started on this machine, since it booted."""
        return self.machine == this_machine()

    @property
    def running(self) -> bool:
        """Whether it still watches over its peers, as far as this machine can tell."""
        return not self.ended and self.here and is_alive(self.pid, self.started)


@contextlib.contextmanager
def present(folder: Path, peers: Iterable[int]) -> Iterator[None]:
    """While the body runs, this process says in a run's folder that it is a launcher of that run; afterwards, that it was."""
    own = stat(os.getpid())
    assert own is not None, "a process that runs is there"
    host, began = socket.gethostname(), time.time()
    path = folder / FOLDER / f"{os.getpid()}-{own.started}-{this_machine()[:8]}.json"
    path.parent.mkdir(exist_ok=True)
    launcher = Launcher(os.getpid(), own.started, this_machine(), host, os.getuid(), began, tuple(peers))
    write_json(path, asdict(launcher))
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # somebody has removed the run's folder
            write_json(path, {**asdict(launcher), "ended": time.time()})


def of(folder: Path) -> list[Launcher]:
    """All that ever were, in the order in which they came."""
    found = []
    for path in (folder / FOLDER).glob("*.json"):
        with contextlib.suppress(ValueError, TypeError):  # not ours: whoever may write there can also delete it
            fields = read_json(path) or {}
            found.append(Launcher(**{**fields, "peers": tuple(fields.get("peers", ()))}))
    return sorted(found, key=lambda launcher: (launcher.since, launcher.pid))


def this_machine() -> str:
    """A word for this boot and this world of pids: containers of one machine have their own."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def is_alive(pid: int, started: int) -> bool:
    found = stat(pid)
    return found is not None and found.started == started and found.state not in "ZX"


def processes_of(folder: Path) -> list[int]:
    """The living processes of this machine that were started as part of the run in ``folder``, as their environment says."""
    word = f"GOSSIP_RUN_DIR={folder.resolve()}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # gone, or not ours to look into
            if word in file.read().split(b"\0"):
                alive = stat(int(name))
                if alive is not None and alive.state not in "ZX":
                    found.append(int(name))
    return sorted(found)
