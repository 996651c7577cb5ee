"""Keeps the freed memory of a node mapped, for reuse in the next round.

By default, glibc maps memory for each large allocation and unmaps the memory when it is freed. The
kernel then clears each page of the next allocation when the page is first used. For a vector of 25
million elements, the first use took as long as an addition, and each round decodes several vectors.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3), from glibc's malloc.h."""
KEPT_BYTES = 2**30
"""Maximum amount of free memory at the end of the heap, in bytes. Memory beyond it is returned to
the system. Free memory before a block that is in use is never returned."""
LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep the memory that this thread, and all threads started later, will free. Return False and
    change nothing if the C library is not glibc, or is an older glibc that rejects such a high
    threshold."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # This call must be first. If it failed after the next call had succeeded, glibc would map
    # memory for smaller blocks, too.
    if mallopt is None or not mallopt(MMAP_THRESHOLD, LARGEST_INT):
        return False
    mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    # Further arenas would have heaps of at most 64 MiB, so glibc would map memory for larger
    # blocks.
    mallopt(ARENA_MAX, 1)
    return True
