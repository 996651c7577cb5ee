"""Cache folder of compiled kernels. Only one process at a time writes to it. This module does not
load the compiler."""

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
    """Return a folder for this version of the kernels. The versions need separate folders because
    numba checks the date of one file, but a kernel depends on several files."""
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
    """Whether all kernels were compiled, by this machine or another machine that shares the
    folder."""
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
    """Lock the file ``what`` against other processes, and wait for the lock up to ``patience_s``.
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
    """Try to lock a file until it is closed or the process ends. Return whether it is locked
    now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
