"""Cache folder of compiled kernels, which one process at a time fills. This module does not load
the compiler."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ASK_AGAIN_S = 0.01
COMPLETE = "complete"


@functools.cache
def folder() -> Path | None:
    """Return a folder for this version of the kernels. The cache of numba checks the date of one
    file, but a kernel depends on several."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        above = Path(chosen) if chosen else Path.home() / ".cache"
    except RuntimeError:  # the user has no home folder
        return None
    return above / "gossip" / f"kernels-{digest.hexdigest()}"


def is_complete() -> bool:
    """Whether all kernels were compiled for this machine, or for one that shares the folder."""
    there = folder()
    return there is not None and (there / COMPLETE).exists()


def mark_complete() -> None:
    """Record that all kernels have been compiled. Raises OSError if the folder cannot be
    written."""
    there = folder()
    if there is not None:
        (there / COMPLETE).touch()


@contextmanager
def alone(there: Path, what: str, patience_s: float) -> Iterator[bool]:
    """Lock ``what`` against other processes of the machine, and wait for it up to ``patience_s``.
    Yields whether the lock was acquired.

    Raises: OSError: The folder cannot be made.
    """
    there.mkdir(parents=True, exist_ok=True)
    with (there / what).open("w") as lock:
        until = time.monotonic() + patience_s
        mine = locked(lock.fileno())
        while not mine and time.monotonic() < until:
            time.sleep(ASK_AGAIN_S)
            mine = locked(lock.fileno())
        yield mine


def locked(fd: int) -> bool:
    """Lock a file, until it is closed or the process ends."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
