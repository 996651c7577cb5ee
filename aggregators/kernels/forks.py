"""Forked processes: there torch would wait for ever for threads that only its parent has.

OpenMP keeps a team of threads for each thread that ever calculated on several. A child process has
the forking thread alone, with the memory of its team. So the team is sent home before a fork; both
processes call a new one when they need it. That takes about as long as the fork. It happens in
whatever is forked by Python, and serves torch's own operations as well.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SOFT = 1  # omp_pause_soft: what is lost is threads, no settings
_left_behind = False


def openmp(name: str) -> Any:
    """A function of the OpenMP library that torch is linked to, or None when it is not linked to
    one, or has no such function."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            # searched in what the library depends on, too
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
        # An OpenMP library from before 2018. One thread is slow, but waits for nobody.
        torch.set_num_threads(1)


@functools.cache
def watch() -> None:
    """Send the team home before each fork from now on. One call is enough."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_child=_in_child)
