"""Launchers of a run. A launcher records its pid and start time in the run's folder. Other commands
identify it by these, never by the name of its program."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossip.errors import ConfigError
from gossip.launch import hold
from gossip.observe import documents
from gossip.run import (
    RECORD_BYTES_MAX,
    ProcessRecord,
    object_in,
    open_in,
    read_at_most,
    shown,
    started_at,
    this_machine,
    write_json,
)

FOLDER = "launchers"
PID_MAX = 2**31 - 1
COMMAND_BYTES_MAX = 4096
PROGRAM = "gossip"
RECORDS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Launcher(ProcessRecord):
    """A process that has started peers of a run. It records its end when its last peer has ended.

    Attributes:
        user: User id of the process.
        peers: Peers that it has started.
        owner: User id of the owner of the record and of its folders. If these have several owners,
            it is the id of an owner other than this user.
        folder: Folder of the run in which the record was found.
    """

    user: int
    peers: tuple[int, ...]
    owner: int
    folder: Path

    @property
    def running(self) -> bool:
        """Whether the launcher still supervises its peers, as far as this machine can see."""
        return self.alive and hold.leads(self.pid, self.folder) is not False

    @property
    def strays(self) -> bool:
        """Whether the process exists and does not lead this folder, because the folder is a copy or
        the record is forged."""
        return self.alive and hold.leads(self.pid, self.folder) is False


@contextlib.contextmanager
def present(folder: Path, peers: Iterable[int]) -> Iterator[None]:
    """Record in a run's folder that this process is a launcher of that run, while the body of the
    context runs. Then record its end."""
    pid, machine = os.getpid(), this_machine()
    said = {
        "pid": pid,
        "started": started_at(pid),
        "user": os.getuid(),
        "machine": machine,
        "host": socket.gethostname(),
        "since": time.time(),
        "peers": tuple(peers),
        "ended": 0.0,
    }
    path = folder / FOLDER / f"{pid}-{said['started']}-{machine[:8]}.json"
    path.parent.mkdir(exist_ok=True)
    held = hold.mark_leader(folder)  # held from before the record appears until its end is recorded
    write_json(path, said)
    try:
        yield
    finally:
        # If the end cannot be recorded (the disk is full, the folder was removed), the folder stays
        # open until the process ends.
        with contextlib.suppress(OSError):
            write_json(path, {**said, "ended": time.time()})
            os.close(held)


def of(folder: Path, broken: list[str] | None = None) -> list[Launcher]:
    """Return the records of all launchers of the run, in order of their start.

    Args:
        broken: List to which a line is added for each invalid record.
    """
    told = [] if broken is None else broken
    try:
        names = sorted([name for name in os.listdir(folder / FOLDER) if name.endswith(".json")])
    except FileNotFoundError:
        return []
    except OSError as error:
        told.append(f"{shown(folder / FOLDER)} cannot be read: {error.strerror}")
        return []
    if len(names) > RECORDS_MAX:
        told.append(
            f"{shown(folder / FOLDER)} has {len(names)} records: {RECORDS_MAX} of them are read"
        )
    found = []
    for name in names[:RECORDS_MAX]:
        try:
            found.append(_read(folder, f"{FOLDER}/{name}"))
        except FileNotFoundError:
            continue  # The record was removed after the listing.
        except ConfigError as error:
            told.append(str(error))
    return sorted(found, key=lambda launcher: (launcher.since, launcher.pid))


def _read(folder: Path, name: str) -> Launcher:
    """Read a record. Raises: ConfigError: The file is not a record of a launcher."""
    owners: set[int] = set()
    with open_in(folder, name, owners) as file:
        said = object_in(read_at_most(file, RECORD_BYTES_MAX, folder / name), folder / name)
    record = documents.LauncherRecord.pick(said)
    fields = {field: getattr(record, field) for field in documents.LauncherRecord.fields}
    if None in fields.values() or not 0 < fields["pid"] <= PID_MAX:
        raise ConfigError(
            f"{shown(folder / name)} is not a launcher's record: a value is missing, or has "
            "another type"
        )
    fields |= {"host": shown(fields["host"]), "peers": tuple(fields["peers"])}
    owner = next((each for each in owners if each != os.geteuid()), os.geteuid())
    return Launcher(**fields, owner=owner, folder=folder)


def command_of(pid: int) -> str:
    """Return the command line of a process; "" if there is none, or it is not readable."""
    return " ".join(_words_of(pid))


def _words_of(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(COMMAND_BYTES_MAX).rstrip(b"\0").split(b"\0")
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in words]


def is_launcher(pid: int, folder: Path) -> bool:
    """Whether a process belongs to this user, leads the run in ``folder``, and was started by a
    command that starts peers.

    The records are no proof: they can be forged, and a user that copies or unpacks a folder owns
    the records in it.
    """
    try:
        own = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
        return own and hold.leads(pid, folder) is True and starts_peers(_words_of(pid))
    except OSError:
        return False  # gone


def starts_peers(command: Sequence[str]) -> bool:
    """Whether a command has one of the forms ``gossip ...``, ``python /usr/bin/gossip ...``,
    ``python -m gossip.launch.X ...`` and ``python -m gossip_X ...``, where ``gossip_X`` is another
    gossip package."""
    if not command:
        return False
    program, *words = map(os.path.basename, command)
    if program == PROGRAM:
        return True
    if not program.startswith("python"):
        return False
    rest = iter(words)
    for word in rest:
        if word in ("-W", "-X"):
            next(rest, None)
        elif not word.startswith("-"):
            return word == PROGRAM
        elif word.endswith("m"):
            return next(rest, "").startswith((f"{PROGRAM}.launch.", f"{PROGRAM}_"))
        elif word.endswith("c"):
            return False
    return False


def processes_of(folder: Path) -> list[int]:
    """Return the pids of the running processes of this machine that have the run in ``folder`` in
    their environment."""
    word = f"GOSSIP_RUN_DIR={folder.resolve()}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        # The process has ended, or belongs to another user.
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                continue  # Root can read the environments of other users, but they may be forged.
            if word in file.read().split(b"\0") and started_at(int(name)) is not None:
                found.append(int(name))
    return sorted(found)
