"""Makes forks safe. In a forked process torch would wait forever for threads of its parent.

OpenMP keeps a team of threads for each thread that has run a parallel region. A child process has
only the forking thread, but the data of its team. So the team is released before a fork, and both
processes start a new one when they need it. This takes about as long as the fork. The release
happens at every fork by Python. Torch's own operations need it, too.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SOFT = 1  # omp_pause_soft: releases threads and keeps settings
_left_behind = False


def openmp(name: str) -> Any:
    """Return a function of the OpenMP library that torch is linked to; None if it is not linked to
    one, or has no such function."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            # also searched in the dependencies of the library
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
        # An OpenMP library from before 2018. One thread is slow, but cannot deadlock.
        torch.set_num_threads(1)


@functools.cache
def watch() -> None:
    """Release the team before each fork from now on. Further calls have no effect."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_child=_in_child)
