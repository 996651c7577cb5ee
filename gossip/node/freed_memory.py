"""Reuse of freed memory: memory that a node has freed stays with its process for the next round.

By default, glibc maps each large allocation and unmaps it when it is freed. The kernel then clears
every page again when the page is first touched. For a vector of 25 million numbers, the first touch
took as long as an addition, and each round decodes several vectors.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3), from glibc's malloc.h."""
KEPT_BYTES = 2**30
"""Amount of free memory at the end of the heap, in bytes, beyond which memory is returned to the
system. Free memory below memory in use is never returned."""
LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep freed memory in this thread and in all threads that are started later. Return False,
    with nothing changed, if the library is not glibc, or an older glibc that rejects so high a
    threshold."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # This call must be first. If only the other one succeeded, glibc would map smaller blocks each
    # time as well.
    if mallopt is None or not mallopt(MMAP_THRESHOLD, LARGEST_INT):
        return False
    mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    # Other threads would allocate in heaps of at most 64 MiB, and map larger blocks.
    mallopt(ARENA_MAX, 1)
    return True
