"""Memory that a node has freed stays with its process, for the next round.

glibc maps each large allocation and unmaps it when it is freed. The kernel then clears every page
again when it is first touched. A vector of 25 million numbers took as long to touch for the first
time as to add, and each round decodes several.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3), from glibc's malloc.h."""
KEPT_BYTES = 2**30
"""Free memory at the end of the heap, in bytes, beyond which it is returned. Free memory below
memory in use stays."""
LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep freed memory from now on, in all threads that are started later. Return False, with
    nothing changed, if this is not glibc, or an older one that refuses such a high threshold."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # This call must be first: after the other one alone, glibc would also map smaller blocks each
    # time.
    if mallopt is None or not mallopt(MMAP_THRESHOLD, LARGEST_INT):
        return False
    mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    # Other threads allocate in heaps of at most 64 MiB, and map larger blocks.
    mallopt(ARENA_MAX, 1)
    return True
