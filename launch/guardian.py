"""Guardian of a launcher: after the launcher has ended, even by SIGKILL, it ends all processes of
the launcher.

The guardian is a small process in its own session. Over a pipe, the launcher sends it the process
group of each peer. When the pipe closes, the guardian wakes stopped processes and gives peers
``MERCY_S`` to exit; peers also detect the end of the launcher. The guardian then kills the
remaining groups and removes the sockets that the launcher left in its folder. Each group is
identified by the pid and the start time of its leader. A token that the launcher puts in the
environment of its processes identifies the members. So the guardian never signals a process that
reuses a pid, and never searches for processes by name.

The guardian runs as a file with ``python -I -S``, so it imports the standard library only. The
launcher imports its functions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat as file_modes
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

# All processes must end within two seconds after the launcher, even on a busy machine.
MERCY_S = 1.0
POLL_S = 0.02
TOKEN_VARIABLE = "GOSSIP_LAUNCHER"


class ProcessStat(NamedTuple):
    """Fields of ``/proc/PID/stat``: state letter, process group, session, number of pages read from
    disk, processor time used, and start time since boot. Both times are in clock ticks."""

    state: str
    group: int
    session: int
    pages_read: int
    ticks: int
    started: int

    @property
    def work(self) -> tuple[int, int]:
        """Processor time and pages read. A slow process changes at least one of them; a stuck
        process changes neither."""
        return self.ticks, self.pages_read


def stat(pid: int) -> ProcessStat | None:
    """Return the fields of ``/proc`` for a process; None if the process does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Search for the last bracket: the command name in front of it may contain spaces and brackets.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(
        state=fields[0],
        group=int(fields[2]),
        session=int(fields[3]),
        pages_read=int(fields[9]),
        ticks=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
    )


def starved_s(pid: int) -> float:
    """Return the seconds for which the process has waited for a processor; 0 if the kernel does not
    count them."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def carries(pid: int, token: str) -> bool:
    """Whether the process, or an ancestor, was started with this token in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{TOKEN_VARIABLE}={token}".encode() in file.read().split(b"\0")
    except OSError:
        return False  # The process has ended, or belongs to another user.


def _processes() -> Iterator[tuple[int, ProcessStat]]:
    """Yield every process that is not a zombie."""
    for name in os.listdir("/proc"):
        found = stat(int(name)) if name.isdigit() else None
        if found is not None and found.state not in "ZX":
            yield int(name), found


def members(leader: int, started: int, token: str) -> list[int]:
    """Return the running processes of a peer's group.

    Args:
        leader: Pid of the peer's first process, which is also the id of its process group.
        started: Start of that process, in clock ticks.
        token: Token of the launcher, which is in the environment of its processes.
    """
    now = stat(leader)
    if now is not None and now.started != started:
        # The pid was reused, which the kernel allows only after the group has ended.
        return []
    known = now is not None  # The leader identifies the group, even as a zombie.
    return [
        pid
        for pid, found in _processes()
        if found.group == leader and (known or carries(pid, token))
    ]


def reap(leader: int) -> None:
    """Reap the zombies of a group, except its leader. The zombies are children of this process,
    which also adopts orphans."""
    for name in os.listdir("/proc"):
        found = stat(int(name)) if name.isdigit() and int(name) != leader else None
        if found is not None and found.state == "Z" and found.group == leader:
            with contextlib.suppress(ChildProcessError):  # not a child of this process
                os.waitpid(int(name), os.WNOHANG)


def signal_group(leader: int, started: int, token: str, number: int) -> bool:
    """Send a signal to a peer's whole group. Return whether the group had members."""
    if not members(leader, started, token):
        return False
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True


def _strays(token: str) -> list[int]:
    """Return all processes with the token: peers that were not registered, and children with their
    own session."""
    return [pid for pid, _ in _processes() if pid != os.getpid() and carries(pid, token)]


def _kill_stray(pid: int, token: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        # The handle refers to this process even if its pid is reused.
        if carries(pid, token):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def end(groups: dict[int, int], token: str, mercy_s: float = MERCY_S) -> None:
    """End all groups: wake stopped processes, wait up to ``mercy_s`` seconds for their end, and
    kill the rest. ``groups`` has the start time of each leader by pid."""
    until = time.monotonic() + mercy_s
    for leader, started in groups.items():
        signal_group(leader, started, token, signal.SIGCONT)
    while time.monotonic() < until:
        if not _strays(token) and not any(
            members(leader, started, token) for leader, started in groups.items()
        ):
            return
        time.sleep(POLL_S)
    # Kill twice: a process that forks at the moment of the first kill leaves a child.
    for _ in range(2):
        for leader, started in groups.items():
            signal_group(leader, started, token, signal.SIGKILL)
        for pid in _strays(token):
            _kill_stray(pid, token)
        time.sleep(POLL_S)


def remove_socket(path: str) -> None:
    """Remove a socket, but no other kind of file."""
    with contextlib.suppress(OSError):
        if file_modes.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def main() -> None:
    """Handle the lines ``token T``, ``watch PID START``, ``forget PID`` and ``socket PATH`` on
    stdin until the launcher ends or sends ``done``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The guardian must not end before the launcher.
    groups: dict[int, int] = {}
    sockets: list[str] = []
    token = ""
    for line in sys.stdin:
        match line.split():
            case ["token", word]:
                token = word
            case ["watch", pid, started]:
                groups[int(pid)] = int(started)
            case ["forget", pid]:
                groups.pop(int(pid), None)
            case ["socket", *_]:
                sockets.append(line.removesuffix("\n").partition(" ")[2])
            case ["done"]:
                return
    for path in sockets:
        remove_socket(path)
    if token:
        end(groups, token)


if __name__ == "__main__":
    main()
