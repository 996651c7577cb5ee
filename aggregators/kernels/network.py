"""Comparisons of rows in a sorting network: Batcher's odd-even mergesort, without comparisons that
do not affect the requested ranks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BOTH, LESSER, GREATER, MERGE = 0, 1, 2, 3
"""Kinds of steps. BOTH writes the smaller value to row a and the larger value to row b; LESSER
writes only row a, GREATER only row b. MERGE makes the comparisons (a, c), (b, d), (b, c) at once,
with a third less cache traffic."""
ROWS_MAX = 2**12
"""Maximum number of rows in a table, because a row's index has 12 bits."""
RUNS = (16, 8, 4, 2)
"""Lengths of runs of rows. A run is sorted in the registers when it is read, without a table."""


def comparators(n: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the comparisons of Batcher's odd-even mergesort for any n, in order: (reach, step,
    first, second). Source: Knuth, volume 3, 5.2.2, algorithm M.

    Comparisons with the same reach merge sorted runs of that length. Comparisons with the same
    reach and step have no row in common.
    """
    reach = 1
    while reach < n:
        step = reach
        while step >= 1:
            for start in range(step % reach, n - step, 2 * step):
                for low in range(start, start + min(step, n - start - step)):
                    merge = low // (2 * reach)
                    # Both rows must be in the same pair of runs, and the second run must exist.
                    if merge == (low + step) // (2 * reach) and merge * 2 * reach + reach < n:
                        yield reach, step, low, low + step
            step //= 2
        reach *= 2


def runs(n: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, length) of each run, in the order in which n rows are read. The longest
    runs come first, and at most one row is left over."""
    first = 0
    for length in RUNS:
        while first + length <= n:
            yield first, length
            first += length


@functools.lru_cache(maxsize=256)
def comparisons(n: int, first: int, last: int) -> tuple[tuple[int, int, int, int, int], ...]:
    """Return the comparisons that ranks ``first..last`` of n values depend on. A comparison is
    (reach, step, first row, second row, kind)."""
    wanted = set(range(first, last + 1))
    kept = []
    for reach, step, low, high in reversed(list(comparators(n))):
        if low in wanted or high in wanted:
            kind = (
                BOTH if low in wanted and high in wanted else LESSER if low in wanted else GREATER
            )
            kept.append((reach, step, low, high, kind))
            wanted |= {low, high}
    return tuple(reversed(kept))


@functools.lru_cache(maxsize=256)
def table(n: int, first: int, last: int) -> NDArray[np.int64]:
    """Return the steps that put ranks ``first..last`` of n rows in place, if the ``runs`` are
    sorted already.

    Returns: one int64 per step, ``kind << 48 | d << 36 | c << 24 | b << 12 | a``.
    """
    run_of = [0] * n
    for begin, length in runs(n):
        run_of[begin : begin + length] = [length] * length
    levels: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for reach, step, low, high, kind in comparisons(n, first, last):
        if reach >= min(run_of[low], run_of[high]):  # otherwise both rows are in one sorted run
            levels.setdefault((reach, -step), {})[low] = (high, kind)
    return np.array(_fused(list(levels.values())), dtype=np.int64)


def _fused(levels: list[dict[int, tuple[int, int]]]) -> list[int]:
    """Return the steps of all levels in order. Where possible, three comparisons of two successive
    levels become one MERGE."""
    made: list[int] = []
    for here, after in itertools.pairwise([*levels, {}]):
        lows = {high: low for low, (high, _) in here.items()}
        for b, (c, _) in sorted(after.items()):
            if b in here and c in lows:
                a, (d, _) = lows[c], here.pop(b)
                del here[a], after[b], lows[c], lows[d]
                made.append(MERGE << 48 | d << 36 | c << 24 | b << 12 | a)
        made += [kind << 48 | high << 12 | low for low, (high, kind) in sorted(here.items())]
    return made
