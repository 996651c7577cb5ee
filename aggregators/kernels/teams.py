"""Runs a compiled kernel on several threads. Each thread processes chunks of one job until none is
left.

If torch has an OpenMP team of threads, the kernel runs on that team. New threads would compete with
torch's threads, which spin for a few milliseconds after each operation. Waking a team takes
microseconds. With one thread no team is used. A team does not survive a fork, so a forked process
uses Python threads here; ``forks`` handles torch's own operations.
"""

from __future__ import annotations

import ctypes
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .forks import openmp

_PROCESS = os.getpid()


class Compiled(Protocol):
    """Result of ``numba.cfunc`` for a kernel."""

    address: int
    ctypes: Any


def run(kernel: Compiled, job: NDArray[np.int64], threads: int) -> None:
    """Run ``kernel(job)`` on ``threads`` threads at once, and return when all threads have
    finished."""
    where = job.ctypes.data
    if threads <= 1:
        kernel.ctypes(where)
        return
    parallel = _openmp()
    if parallel is not None and os.getpid() == _PROCESS:
        parallel(kernel.address, where, threads, 0)
        return
    with ThreadPoolExecutor(threads) as pool:  # ctypes releases the interpreter lock
        for done in [pool.submit(kernel.ctypes, where) for _ in range(threads)]:
            done.result()


@functools.cache
def _openmp() -> Any:
    """Return ``GOMP_parallel(function, data, threads, flags)`` of the OpenMP library that torch is
    linked to; None if there is no such function."""
    parallel = openmp("GOMP_parallel")
    if parallel is not None:
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
    return parallel
