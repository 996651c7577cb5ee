"""Compiled kernels on the ranks of each coordinate. Importing this module compiles them, or loads
them from the cache on disk.

A block of columns is read from all rows, multiplied by the matrix if there is one, sorted by a
sorting network and averaged, all in the first-level cache. The next block is prefetched. The
comparisons of the network are data, so one compiled kernel serves every n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .compiled_cache import kernel
from .lanes import (
    STEP,
    add,
    add_at,
    address_of,
    beyond,
    draw_ticket,
    fetch_soon,
    fma,
    hold,
    inside,
    least,
    load,
    load_four,
    load_two,
    most,
    mul,
    number,
    put,
    sort_eight,
    sort_four,
    sort_sixteen,
    sort_two,
    splat_four,
    splat_two,
    spread_two,
    store,
    strange,
    sub,
    where_more,
    word,
)

BETWEEN, MAJORITY = 0, 2
"""Modes of ``ranks``. Mode 1 is ``nearest``."""


@njit
def _read_runs(rows: int, n: int, here: int, into: int, stride: int) -> int:
    """Read a block, and sort its rows in runs (``network.runs``). Returns a value other than 0 if
    there is a NaN."""
    done = strangers = 0
    while done + 16 <= n:
        for k in range(0, stride, STEP):
            strangers |= sort_sixteen(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 16
    if done + 8 <= n:
        for k in range(0, stride, STEP):
            strangers |= sort_eight(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 8
    if done + 4 <= n:
        for k in range(0, stride, STEP):
            strangers |= sort_four(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 4
    if done + 2 <= n:
        for k in range(0, stride, STEP):
            strangers |= sort_two(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 2
    if done < n:
        row = word(rows + 8 * done) + here
        for k in range(0, stride, STEP):
            value = load(row + k)
            strangers |= strange(value)
            store(into + stride * done + k, value)
    return strangers


@njit
def _merge(
    block: int, stride: int, table: int, count: int, rows: int, n: int, following: int
) -> None:
    """Run the steps of a table (``network.table``). Between steps, prefetch the next block: the
    data ``following`` bytes after the start of each of n rows."""
    lines = stride // 64
    share = (n * lines + count - 1) // max(count, 1)
    row, line = 0, 0
    for at in range(count):
        for _ in range(share):
            if row < n:
                fetch_soon(word(rows + 8 * row) + following + 64 * line)
                line += 1
                if line == lines:
                    row, line = row + 1, 0
        step = word(table + 8 * at)
        low, high, kind = (
            block + stride * (step & 0xFFF),
            block + stride * ((step >> 12) & 0xFFF),
            step >> 48,
        )
        if kind == 3:
            third, fourth = (
                block + stride * ((step >> 24) & 0xFFF),
                block + stride * ((step >> 36) & 0xFFF),
            )
            for k in range(0, stride, STEP):
                a, b, c, d = load(low + k), load(high + k), load(third + k), load(fourth + k)
                b, d = least(b, d), most(b, d)
                a, c = least(a, c), most(a, c)
                store(low + k, a)
                store(high + k, least(b, c))
                store(third + k, most(b, c))
                store(fourth + k, d)
        elif kind == 0:
            for k in range(0, stride, 2 * STEP):
                a, b = load_two(low + k), load_two(high + k)
                store(low + k, least(a, b))
                store(high + k, most(a, b))
        elif kind == 1:
            for k in range(0, stride, 2 * STEP):
                store(low + k, least(load_two(low + k), load_two(high + k)))
        else:
            for k in range(0, stride, 2 * STEP):
                store(high + k, most(load_two(low + k), load_two(high + k)))


@njit
def mix(rows: int, n: int, here: int, matrix: int, m: int, into: int, stride: int) -> None:
    """Compute m weighted sums of a block's rows. ``matrix``: float32, in groups of four sums; each
    group has four weights for each row."""
    for first in range(0, m, 4):
        weights = matrix + 4 * n * first
        target = into + stride * first
        for k in range(0, stride, 2 * STEP):
            a = b = c = d = splat_two(np.float32(0.0))
            for row in range(n):
                x, w = load_two(word(rows + 8 * row) + here + k), weights + 16 * row
                a, b = fma(spread_two(w), x, a), fma(spread_two(w + 4), x, b)
                c, d = fma(spread_two(w + 8), x, c), fma(spread_two(w + 12), x, d)
            store(target + k, a)
            store(target + stride + k, b)
            store(target + 2 * stride + k, c)
            store(target + 3 * stride + k, d)


@njit
def _means(block: int, stride: int, low: int, high: int, share: Any, into: int) -> None:
    """Compute the mean of ranks low..high of every column."""
    zero = splat_four(np.float32(0.0))
    for k in range(0, stride, 4 * STEP):
        at = block + stride * low + k
        mean = load_four(at)
        for _ in range(low, high):
            at += stride
            mean = add(mean, load_four(at))
        mean = add(mul(mean, share), zero)  # + 0 turns -0 into 0
        store(into + k, mean)
        if beyond(mean):
            for column in range(k, k + 4 * STEP, 4):
                if not np.isfinite(number(into + column)):
                    exact = 0.0
                    for rank in range(low, high + 1):
                        exact += np.float64(number(block + stride * rank + column)) / (
                            high - low + 1
                        )
                    put(into + column, np.float32(exact))


@njit
def _pick(at: int, jump: int, turns: int, center: Any) -> Any:
    """Return the last of several ascending values, ``jump`` bytes apart, that is nearer to the
    center than the value before it; otherwise the first value.

    The ``count`` values of a column that are nearest to a center have consecutive ranks. So among
    values with ranks that differ by multiples of ``count``, exactly one value is among the nearest
    values: the returned value. If two values are equally near, the smaller value is used.
    """
    before = taken = load_two(at)
    for _ in range(turns):
        at += jump
        after = load_two(at)
        taken = where_more(sub(center, before), sub(after, center), after, taken)
        before = after
    return taken


@njit
def _nearest(
    block: int, stride: int, n: int, count: int, centers: int, share: Any, into: int
) -> None:
    """Compute the mean of the ``count`` sorted values nearest to the centers."""
    zero = splat_two(np.float32(0.0))
    for k in range(0, stride, 2 * STEP):
        center, mean = load_two(centers + k), zero
        for first in range(count):
            turns = (n - 1 - first) // count
            mean = add(mean, _pick(block + stride * first + k, stride * count, turns, center))
        mean = add(mul(mean, share), zero)
        store(into + k, mean)
        if beyond(mean):
            for column in range(k, k + 2 * STEP, 4):
                if not np.isfinite(number(into + column)):
                    put(
                        into + column,
                        _exact_nearest(block + column, stride, n, count, number(centers + column)),
                    )


@njit
def _exact_nearest(column: int, stride: int, n: int, count: int, center: Any) -> Any:
    """Return the mean of the ``count`` values of one column nearest to the center, computed in
    float64."""
    start = 0
    while start + count < n and (
        center - number(column + stride * start)
        > number(column + stride * (start + count)) - center
    ):
        start += 1
    exact = 0.0
    for rank in range(start, start + count):
        exact += np.float64(number(column + stride * rank)) / count
    return np.float32(exact)


@njit
def _votes(rows: int, n: int, here: int, k: int) -> Any:
    """Return two values for each column: the sign of most rows (1 or -1; 0 for a tie), and the sum
    of all values. The sum is NaN if a value is NaN."""
    zero, one = splat_two(np.float32(0.0)), splat_two(np.float32(1.0))
    other = splat_two(np.float32(-1.0))
    votes = everything = zero
    for row in range(n):
        value = load_two(word(rows + 8 * row) + here + k)
        everything = add(everything, value)
        votes = add(votes, where_more(value, zero, one, where_more(zero, value, other, zero)))
    return where_more(votes, zero, one, where_more(zero, votes, other, zero)), everything


@njit
def _count(rows: int, n: int, here: int, k: int, low: Any, high: Any, survived: Any) -> None:
    for row in range(n):
        survived[row] += inside(load_two(word(rows + 8 * row) + here + k), low, high)


@njit
def _block(
    job: int, rows: int, here: int, out: int, block: int, following: int, survived: Any
) -> int:
    """Aggregate one block of columns for ``ranks``. ``rows``: address of the addresses of m rows;
    the block begins ``here`` bytes after each of them.

    Returns a value other than 0 if the block may contain a NaN.
    """
    m, stride = word(job + 24), 4 * word(job + 8)
    mode, low, high, count = word(job + 80), word(job + 88), word(job + 96), word(job + 104)
    strangers: int = 0
    counting = word(job + 112) != 0
    if mode == MAJORITY:
        zero = splat_two(np.float32(0.0))
        for k in range(0, stride, 2 * STEP):
            sign, everything = _votes(rows, m, here, k)
            strangers |= strange(everything)
            store(out + k, sign)
            if counting:
                # A row survives if its sign is the result, so its value is in (0, inf] or
                # [-inf, 0), or is 0.
                tiny, huge = splat_two(np.float32(1e-45)), splat_two(np.float32(np.inf))
                least_kept = where_more(
                    sign, zero, tiny, where_more(zero, sign, sub(zero, huge), zero)
                )
                most_kept = where_more(
                    sign, zero, huge, where_more(zero, sign, sub(zero, tiny), zero)
                )
                _count(rows, m, here, k, least_kept, most_kept, survived)
        return strangers
    strangers |= _read_runs(rows, m, here, block, stride)
    _merge(block, stride, word(job + 64), word(job + 72), word(job + 40), word(job + 16), following)
    share = splat_four(np.float32(1.0 / (high - low + 1)))
    if mode == BETWEEN:
        _means(block, stride, low, high, share, out)
        if counting:
            for k in range(0, stride, 2 * STEP):
                lowest = load_two(block + stride * low + k)
                highest = load_two(block + stride * high + k)
                _count(rows, m, here, k, lowest, highest, survived)
        return strangers
    centers = block + stride * m
    _means(block, stride, low, high, share, centers)
    _nearest(block, stride, m, count, centers, splat_two(np.float32(1.0 / count)), out)
    if counting:
        for k in range(0, stride, 2 * STEP):
            center = load_two(centers + k)
            least_kept = most_kept = _pick(block + k, stride * count, (m - 1) // count, center)
            for first in range(1, count):
                taken = _pick(
                    block + stride * first + k, stride * count, (m - 1 - first) // count, center
                )
                least_kept, most_kept = least(least_kept, taken), most(most_kept, taken)
            _count(rows, m, here, k, least_kept, most_kept, survived)
    return strangers


@kernel
def ranks(pointer: Any) -> None:
    """Aggregate chunks of columns until none is left. Several threads may run this on the same job.

    The job has int64 words. Words 0 to 4: next chunk; columns of a block; n, rows; m, rows after
    mixing; d, columns. Words 5 to 8: address of the rows' addresses, of the matrix (or 0), of the
    result, of the table of comparisons. Words 9 to 13: number of comparisons; mode; low; high;
    count. Word 14: address of the int64 numbers of survivors, or 0. Word 15: columns of a chunk.
    Word 16 is an output: if it is not 0, rows may contain a NaN, and the result is invalid. Word
    17: bytes between the numbers of survivors of two chunks; with 0, all chunks add to the same
    numbers.
    """
    job = address_of(pointer)
    columns, n, m, d = word(job + 8), word(job + 16), word(job + 24), word(job + 32)
    rows, matrix, out, chunk = word(job + 40), word(job + 48), word(job + 56), word(job + 120)
    stride = 4 * columns
    space = np.empty((2 * m + n + 16) * columns, np.float32)
    block = (space.ctypes.data + 63) // 64 * 64
    mixed = block + stride * (m + 1)  # + 1 because a row of centers follows the block
    staged = mixed + stride * (m + 4)
    addresses = np.empty(m + n, np.int64)
    for row in range(m):
        addresses[row] = mixed + stride * row
    for row in range(n):
        addresses[m + row] = staged + stride * row
    mixed_rows, staged_rows = addresses.ctypes.data, addresses.ctypes.data + 8 * m
    last = staged + stride * n
    survived, strangers = np.zeros(m, np.int64), 0
    while True:
        ticket = draw_ticket(job)
        first = ticket * chunk
        if first >= d:
            break
        end = min(d, first + chunk)
        for start in range(first, end, columns):
            width = min(columns, end - start)
            source, here, target = rows, 4 * start, out + 4 * start
            if width < columns:  # the last columns, padded with zeros
                for row in range(n):
                    for k in range(columns):
                        value = (
                            number(word(rows + 8 * row) + 4 * (start + k))
                            if k < width
                            else np.float32(0.0)
                        )
                        put(staged + stride * row + 4 * k, value)
                source, here, target = staged_rows, 0, last
            if matrix:
                mix(source, n, here, matrix, m, mixed, stride)
                source, here = mixed_rows, 0
            strangers |= _block(job, source, here, target, block, 4 * start + stride, survived)
            if width < columns:
                survived -= columns - width  # without the padding, in which every row survives
                for k in range(width):
                    put(out + 4 * (start + k), number(last + 4 * k))
        if word(job + 112):
            for row in range(m):
                add_at(word(job + 112) + word(job + 136) * ticket + 8 * row, survived[row])
            survived[:] = 0
    if strangers:
        add_at(job + 128, 1)
    hold(space)
    hold(addresses)
