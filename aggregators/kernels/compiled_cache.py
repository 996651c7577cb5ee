"""Compiles a kernel once for this machine and keeps it in the user's cache folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from numba import cfunc, types
from numba.core import config

from . import cache_folder

log = logging.getLogger(__name__)
PATIENCE_S = 30.0
"""Maximum wait for another process that compiles the same kernels. It is longer than the
compilation of all kernels, and finite because the other process may be suspended."""
compiled: list[str] = []
"""Names of kernels that this process did not find in the cache."""


def kernel(function: Callable[[Any], None]) -> Any:
    """Load the C function of ``function(job)`` from the cache, or compile it, which takes
    seconds."""
    signature = types.void(types.voidptr)
    folder = cache_folder.folder()
    if folder is None:
        return cfunc(signature)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)  # numba reads this setting only in ``cfunc``
    try:
        with cache_folder.alone(folder, "lock", PATIENCE_S) as mine:
            if not mine:
                log.warning(
                    "another process has been compiling kernels for %g s: compiling them here, too",
                    PATIENCE_S,
                )
            made = cfunc(signature, cache=True)(function)
        if not made.cache_hits:
            compiled.append(function.__name__)
        return made
    except (RuntimeError, OSError) as error:
        log.info("kernels are compiled anew in every process: reason=%s folder=%s", error, folder)
        return cfunc(signature)(function)
    finally:
        config.CACHE_DIR = before
