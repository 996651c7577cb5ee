"""Compiles a kernel once for this machine and keeps it in the user's cache folder."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba import cfunc, types
from numba.core import config

log = logging.getLogger(__name__)
PATIENCE_S = 30.0
"""How long a process waits for another that compiles the same: longer than all kernels take, and not for ever, for it may be
stopped."""
ASK_AGAIN_S = 0.01
compiled: list[str] = []
"""The kernels that this process did not find in the cache."""


def kernel(function: Callable[[Any], None]) -> Any:
    """Makes ``function(job)`` a C function, from the cache or by compiling it, which takes seconds."""
    signature = types.void(types.voidptr)
    folder = _folder()
    if folder is None:
        return cfunc(signature)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)  # read while the function is made, and only then
    try:
        with _alone(folder):
            made = cfunc(signature, cache=True)(function)
        if not made.cache_hits:
            compiled.append(function.__name__)
        return made
    except (RuntimeError, OSError) as error:
        log.info("kernels are compiled anew in every process: reason=%s folder=%s", error, folder)
        return cfunc(signature)(function)
    finally:
        config.CACHE_DIR = before


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process compiles, the others of a machine wait and then find what it left: nodes all start at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        until = time.monotonic() + PATIENCE_S
        while not _locked(lock.fileno()):
            if time.monotonic() > until:
                log.warning("another process has been compiling kernels for %g s: compiling them here, too", PATIENCE_S)
                break
            time.sleep(ASK_AGAIN_S)
        yield


def _locked(fd: int) -> bool:
    """Closing the file, or dying, lets go of it again."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@functools.cache
def _folder() -> Path | None:
    """A folder for this very version of the kernels: numba itself looks at one file's date, and a kernel is made of several."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    chosen = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME")
    try:
        above = Path(chosen) if chosen else Path.home() / ".cache"
    except RuntimeError:  # nobody's home
        return None
    return above / "gossip" / f"kernels-{digest.hexdigest()}"
