"""Marks a process as the launcher of a run: the launcher holds the run's folder open, so that a
copy of the folder has no launcher.

The descriptor has ``O_PATH``, which no program that reads folders uses. ``/proc`` shows this flag
to the same user, and no file can imitate it. The descriptor refers to the folder itself, even after
a rename. The inspecting process runs on the launcher's machine, so both see the same device and
inode, also on a network file system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def mark_leader(folder: Path) -> int:
    """Mark this process as the leader of the run in ``folder``, until it closes the returned
    descriptor or ends."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def leads(pid: int, folder: Path) -> bool | None:
    """Whether a process leads the run in ``folder``. None if it is unknown because the process
    belongs to another user."""
    try:
        wanted = os.stat(folder)
        return any(os.path.samestat(held, wanted) for _, held in _held_by(pid))
    except PermissionError:
        return None
    except OSError:
        return False  # The process or the folder no longer exists.


def led_by(pid: int) -> list[Path]:
    """Return the present paths of the folders that a process leads."""
    found = []
    with contextlib.suppress(OSError):
        for number, held in _held_by(pid):
            with contextlib.suppress(OSError):  # It was removed, or is mounted elsewhere.
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if os.path.samestat(os.stat(path), held):
                    found.append(Path(path))
    return found


def _held_by(pid: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the ``O_PATH`` descriptors of a process, with their status. Others are skipped: a stat
    of their file may block."""
    for number in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                flags = next(
                    (int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0
                )
            if flags & os.O_PATH:
                yield number, os.stat(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # It was closed in between.
