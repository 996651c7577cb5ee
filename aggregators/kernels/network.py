"""Comparisons of rows in a sorting network: Batcher's odd-even merges, without the comparisons that
do not affect a requested rank."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BOTH, LESSER, GREATER, MERGE = 0, 1, 2, 3
"""Kinds of steps on rows a and b: keep the smaller in a and the larger in b, or only one of them. A
merge of rows a, b with rows c, d makes the comparisons (a, c), (b, d), (b, c) with a third less
cache traffic."""
ROWS_MAX = 2**12
"""Maximum number of rows in a table."""
RUNS = (16, 8, 4, 2)
"""Lengths of runs of rows that are sorted in the registers while they are read, without a table."""


def comparators(n: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield Batcher's odd-even merge exchange for any n (Knuth, volume 3, 5.2.2, algorithm M), in
    order: (reach, step, first, second).

    Comparisons of one reach merge sorted runs of that length. Comparisons of one reach and step use
    different rows.
    """
    reach = 1
    while reach < n:
        step = reach
        while step >= 1:
            for start in range(step % reach, n - step, 2 * step):
                for low in range(start, start + min(step, n - start - step)):
                    merge = low // (2 * reach)
                    # otherwise there is no run to merge with
                    if merge == (low + step) // (2 * reach) and merge * 2 * reach + reach < n:
                        yield reach, step, low, low + step
            step //= 2
        reach *= 2


def runs(n: int) -> Iterator[tuple[int, int]]:
    """Yield the order in which n rows are read: (first row, length) of each sorted run. Longest
    runs come first, and at most one row is left over."""
    first = 0
    for length in RUNS:
        while first + length <= n:
            yield first, length
            first += length


@functools.lru_cache(maxsize=256)
def comparisons(n: int, first: int, last: int) -> tuple[tuple[int, int, int, int, int], ...]:
    """Return the comparisons that ranks ``first..last`` of n values depend on: (reach, step, first,
    second, kind)."""
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
    """Return the steps that put ranks ``first..last`` of n rows in place, for rows in sorted
    ``runs``.

    Returns: one int64 a step: ``kind << 48 | d << 36 | c << 24 | b << 12 | a``.
    """
    run_of = [0] * n
    for begin, length in runs(n):
        run_of[begin : begin + length] = [length] * length
    levels: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for reach, step, low, high, kind in comparisons(n, first, last):
        if reach >= min(run_of[low], run_of[high]):  # otherwise both are in one run
            levels.setdefault((reach, -step), {})[low] = (high, kind)
    return np.array(_fused(list(levels.values())), dtype=np.int64)


def _fused(levels: list[dict[int, tuple[int, int]]]) -> list[int]:
    """Return the steps of all levels in order. Where possible, three comparisons of two levels
    become one merge."""
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
