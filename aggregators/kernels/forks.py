"""Makes forks safe. Without this module, torch in a forked process would wait forever for threads
of the parent process.

OpenMP keeps a team of threads for each thread that has run a parallel region. A child process has
only the forking thread, but still has the data structures of its team. So the team is released
before every fork by Python, and both processes start a new team when they need one. The release
takes about as long as the fork. Torch's own operations need it, too.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SOFT = 1  # omp_pause_soft, which releases threads and keeps settings
_left_behind = False


def openmp(name: str) -> Any:
    """Return a function of the OpenMP library that torch is linked to. None if there is no such
    library, or no such function in it."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            # This also searches the dependencies of the library, such as OpenMP.
            return getattr(ctypes.CDLL(str(library)), name)
        except (OSError, AttributeError):
            continue
    return None


@functools.cache
def _pause() -> Callable[[int], int] | None:
    pause: Any = openmp("omp_pause_resource_all")
    if pause is None:
        return None
    pause.argtypes = [ctypes.c_int]
    pause.restype = ctypes.c_int
    return pause  # type: ignore[no-any-return]


def _before() -> None:
    global _left_behind
    pause = _pause()
    _left_behind = pause is None or pause(SOFT) != 0


def _in_child() -> None:
    if _left_behind and torch.get_num_threads() > 1:
        # The OpenMP library is from before 2018 and cannot release threads. One thread is slow, but
        # cannot deadlock.
        torch.set_num_threads(1)


@functools.cache
def watch() -> None:
    """Release the team before each fork from now on. A second call has no effect."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_child=_in_child)
