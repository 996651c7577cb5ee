"""A launcher holds the folder of its run open for as long as it leads it: so nobody takes it for
the launcher of a copy.

What it holds is a descriptor that only says where the folder is (``O_PATH``), which no reader of
folders opens. The kernel shows it to the same user in ``/proc``, and no file can make it up. It
means the folder itself, whatever that is called by now. Tool and launcher are processes of one
machine, so device and inode are the same for both, also where the folder is shared over a network.
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
    """Whether a process leads the run in ``folder``. None: it may not be looked into,
    being another user's."""
    try:
        wanted = os.stat(folder)
        return any(os.path.samestat(held, wanted) for _, held in _held_by(pid))
    except PermissionError:
        return None
    except OSError:
        return False  # the process is gone, or the folder


def led_by(pid: int) -> list[Path]:
    """The folders that a process leads, by the names that they have now."""
    found = []
    with contextlib.suppress(OSError):
        for number, held in _held_by(pid):
            with contextlib.suppress(OSError):  # it was removed, or has its name elsewhere only
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if os.path.samestat(os.stat(path), held):
                    found.append(Path(path))
    return found


def _held_by(pid: int) -> Iterator[tuple[str, os.stat_result]]:
    """The descriptors that only say where something is, and what that is. No other is looked at:
    its disk may not answer."""
    for number in os.listdir(f"/proc/{pid}/fdinfo"):
        try:
            with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                flags = next(
                    (int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0
                )
            if flags & os.O_PATH:
                yield number, os.stat(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # closed meanwhile
