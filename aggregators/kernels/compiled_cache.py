"""Compiles a kernel once for this machine and keeps it in the user's cache folder."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import cfunc, types
from numba.core import config

log = logging.getLogger(__name__)


def kernel(function: Callable[[Any], None]) -> Any:
    """Makes ``function(job)`` a C function, from the cache or by compiling it, which takes seconds."""
    signature = types.void(types.voidptr)
    folder = _folder()
    if folder is None:
        return cfunc(signature)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)  # read while the function is made, and only then
    try:
        return cfunc(signature, cache=True)(function)
    except (RuntimeError, OSError) as error:
        log.info("kernels are compiled anew in every process: reason=%s folder=%s", error, folder)
        return cfunc(signature)(function)
    finally:
        config.CACHE_DIR = before


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
