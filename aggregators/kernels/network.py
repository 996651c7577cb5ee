"""Which rows a sorting network compares: Batcher's odd-even merges, without the comparisons that no wanted rank depends on."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BOTH, LESSER, GREATER = 0, 1, 2
"""What a comparison keeps: the lesser in the first row and the greater in the second, or only one of them."""


def comparators(n: int) -> Iterator[tuple[int, int, int]]:
    """Batcher's odd-even merge exchange for any n (Knuth, volume 3, 5.2.2, algorithm M), in order: (reach, first, second).

    Comparisons of one reach merge sorted runs of that length.
    """
    reach = 1
    while reach < n:
        step = reach
        while step >= 1:
            for start in range(step % reach, n - step, 2 * step):
                for low in range(start, start + min(step, n - start - step)):
                    if low // (2 * reach) == (low + step) // (2 * reach):
                        yield reach, low, low + step
            step //= 2
        reach *= 2


@functools.lru_cache(maxsize=256)
def table(n: int, first: int, last: int) -> NDArray[np.int64]:
    """The comparisons that put ranks ``first..last`` of n rows in place when rows come in sorted runs of 8 and then of 4.

    Sorting short runs takes no table: eight rows fit in the registers while they are read. Of n rows the first n // 8 * 8
    come in runs of 8, then 4 if so many are left, the others as they are.

    Returns: one int64 a comparison, ``first row | second row << 16 | what is kept << 32``.
    """
    eights = n // 8 * 8
    fours = eights + (n - eights) // 4 * 4
    wanted = set(range(first, last + 1))
    kept: list[int] = []
    for reach, low, high in reversed(list(comparators(n))):
        if low in wanted or high in wanted:
            in_a_run = (reach < 8 and high < eights) or (reach < 4 and eights <= low and high < fours)
            if not in_a_run:
                what = BOTH if low in wanted and high in wanted else LESSER if low in wanted else GREATER
                kept.append(low | high << 16 | what << 32)
            wanted |= {low, high}
    return np.array(kept[::-1], dtype=np.int64)
