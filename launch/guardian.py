"""Outlives the launcher, only to end what it started: no peer survives its launcher,
however that died.

A tiny process of its own session that holds a pipe to the launcher and learns each peer's process
group from it. At end of file it wakes whatever is stopped, gives the peers ``MERCY_S`` to leave by
themselves (they see the launcher go as well), kills the groups that remain, and removes the sockets
that the launcher has left in its folder. A group is known by its leader's pid and start time, its
members by a word in their environment that only this launcher gave out: a pid that somebody else
has by now is never hit, and nothing is looked up by name.

Run as a file with ``python -I -S``, so it imports the standard library only.
The launcher imports its functions.
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

# of the two seconds after which nothing of a run may be left,
# on a machine that does something else, too
MERCY_S = 1.0
POLL_S = 0.02
TOKEN_VARIABLE = "GOSSIP_LAUNCHER"


class ProcessStat(NamedTuple):
    """Facts of /proc about a process: its state letter, process group, session, pages read from a
    disk so far, processor time so far and start since boot, both in clock ticks."""

    state: str
    group: int
    session: int
    pages_read: int
    ticks: int
    started: int

    @property
    def work(self) -> tuple[int, int]:
        """Figures that change while the process is not stuck, however slow it is."""
        return self.ticks, self.pages_read


def stat(pid: int) -> ProcessStat | None:
    """None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # a command's name may hold spaces and brackets
    return ProcessStat(
        state=fields[0],
        group=int(fields[2]),
        session=int(fields[3]),
        pages_read=int(fields[9]),
        ticks=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
    )


def starved_s(pid: int) -> float:
    """Return for how long the process has waited for a processor; 0 where nobody counts that."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def carries(pid: int, token: str) -> bool:
    """Whether the process was started, at whatever remove, with our word in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{TOKEN_VARIABLE}={token}".encode() in file.read().split(b"\0")
    except OSError:
        return False  # gone, or not ours to look into


def _processes() -> Iterator[tuple[int, ProcessStat]]:
    """Every process that is not a zombie."""
    for name in os.listdir("/proc"):
        found = stat(int(name)) if name.isdigit() else None
        if found is not None and found.state not in "ZX":
            yield int(name), found


def members(leader: int, started: int, token: str) -> list[int]:
    """The living processes of a peer's group.

    Args:
        leader: The pid that the peer was started with, also the number of its group.
        started: The leader's start, in clock ticks.
        token: The word in its environment.
    """
    now = stat(leader)
    if now is not None and now.started != started:
        # somebody else's by now, so our group is gone: a number is not given out again before that
        return []
    known = now is not None  # the leader itself says that it is our group, even as a zombie
    return [
        pid
        for pid, found in _processes()
        if found.group == leader and (known or carries(pid, token))
    ]


def reap(leader: int) -> None:
    """Lets go of the dead of a group, but for its leader: who adopts orphans has to."""
    for name in os.listdir("/proc"):
        found = stat(int(name)) if name.isdigit() and int(name) != leader else None
        if found is not None and found.state == "Z" and found.group == leader:
            with contextlib.suppress(ChildProcessError):  # somebody else's
                os.waitpid(int(name), os.WNOHANG)


def signal_group(leader: int, started: int, token: str, number: int) -> bool:
    """Sends a signal to a peer's whole group. Returns whether there was anybody to take it."""
    if not members(leader, started, token):
        return False
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True


def _strays(token: str) -> list[int]:
    """Whoever carries our word, in whatever group: a peer that was started but not told us, a child
    with a session of its own."""
    return [pid for pid, _ in _processes() if pid != os.getpid() and carries(pid, token)]


def _kill_stray(pid: int, token: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        # the handle keeps meaning this very process, whatever happens to its number
        if carries(pid, token):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def end(groups: dict[int, int], token: str, mercy_s: float = MERCY_S) -> None:
    """Ends all groups (leader -> start): wakes them, waits up to ``mercy_s``, kills the rest."""
    until = time.monotonic() + mercy_s
    for leader, started in groups.items():
        signal_group(leader, started, token, signal.SIGCONT)
    while time.monotonic() < until:
        if not _strays(token) and not any(
            members(leader, started, token) for leader, started in groups.items()
        ):
            return
        time.sleep(POLL_S)
    # Twice: a process that was just forking when its group was killed leaves one more.
    for _ in range(2):
        for leader, started in groups.items():
            signal_group(leader, started, token, signal.SIGKILL)
        for pid in _strays(token):
            _kill_stray(pid, token)
        time.sleep(POLL_S)


def remove_socket(path: str) -> None:
    """A file that is no socket by now is somebody else's."""
    with contextlib.suppress(OSError):
        if file_modes.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def main() -> None:
    """Reads ``token T``, ``watch PID START``, ``forget PID`` and ``socket PATH`` until the launcher
    is gone or says ``done``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the launcher and not before
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
