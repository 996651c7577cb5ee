"""Marks a process as the launcher of a run. A launcher keeps the folder of its run open. No process
keeps a copy of the folder open, so a copy has no launcher.

The descriptor is opened with ``O_PATH``, a flag that programs do not use to read folders. ``/proc``
shows the flag to processes of the same user, and no file content can fake it. The descriptor refers
to the folder itself, even after a rename. The inspecting process runs on the launcher's machine, so
both see the same device and inode, also on a network file system.
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
    """Whether a process leads the run in ``folder``. None if the process belongs to another user,
    so that this is unknown."""
    try:
        wanted = os.stat(folder)
        return any(os.path.samestat(held, wanted) for _, held in _held_by(pid))
    except PermissionError:
        return None
    except OSError:
        return False  # The process or the folder no longer exists.


def led_by(pid: int) -> list[Path]:
    """Return the present paths of the folders of the runs that a process leads."""
    found = []
    with contextlib.suppress(OSError):
        for number, held in _held_by(pid):
            with contextlib.suppress(OSError):  # The folder was removed, or is mounted elsewhere.
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if os.path.samestat(os.stat(path), held):
                    found.append(Path(path))
    return found


def _held_by(pid: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the ``O_PATH`` descriptors of a process, with their status. Other descriptors are
    skipped, because a stat of their file may block."""
    for number in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                flags = next(
                    (int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0
                )
            if flags & os.O_PATH:
                yield number, os.stat(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # The descriptor was closed in the meantime.
