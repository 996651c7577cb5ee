"""Compiled kernels on the ranks of each coordinate. Importing this compiles them, or fetches them from the cache on disk.

A block of columns is read from all rows, mixed if there is a matrix, sorted by a network whose comparisons are data, and
averaged, all while it is in the first-level cache; meanwhile the next block is fetched. So n may change from call to call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cfunc, njit, types

from .lanes import (
    STEP,
    add,
    add_at,
    address_of,
    beyond,
    fetch_soon,
    fma,
    hold,
    inside,
    least,
    load,
    most,
    mul,
    number,
    put,
    sort_eight,
    sort_four,
    sort_sixteen,
    sort_two,
    splat,
    spread,
    store,
    sub,
    take_ticket,
    where_more,
    word,
)

BETWEEN, NEAREST, MAJORITY = 0, 1, 2
"""What becomes of the sorted values of a column."""


@njit
def _read_runs(rows: int, n: int, here: int, into: int, stride: int) -> None:
    """Reads a block in sorted runs, as ``network.runs`` has them."""
    done = 0
    while done + 16 <= n:
        for k in range(0, stride, STEP):
            sort_sixteen(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 16
    if done + 8 <= n:
        for k in range(0, stride, STEP):
            sort_eight(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 8
    if done + 4 <= n:
        for k in range(0, stride, STEP):
            sort_four(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 4
    if done + 2 <= n:
        for k in range(0, stride, STEP):
            sort_two(rows + 8 * done, here + k, into + stride * done + k, stride)
        done += 2
    if done < n:
        row = word(rows + 8 * done) + here
        for k in range(0, stride, STEP):
            store(into + stride * done + k, load(row + k))


@njit
def _merge(block: int, stride: int, table: int, count: int, rows: int, n: int, following: int) -> None:
    """Takes the steps of a table; in between asks for what lies ``following`` bytes into each of n rows."""
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
        low, high, kind = block + stride * (step & 0xFFF), block + stride * ((step >> 12) & 0xFFF), step >> 48
        if kind == 3:
            third, fourth = block + stride * ((step >> 24) & 0xFFF), block + stride * ((step >> 36) & 0xFFF)
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
                a, b, c, d = load(low + k), load(high + k), load(low + k + STEP), load(high + k + STEP)
                store(low + k, least(a, b))
                store(high + k, most(a, b))
                store(low + k + STEP, least(c, d))
                store(high + k + STEP, most(c, d))
        elif kind == 1:
            for k in range(0, stride, 2 * STEP):
                store(low + k, least(load(low + k), load(high + k)))
                store(low + k + STEP, least(load(low + k + STEP), load(high + k + STEP)))
        else:
            for k in range(0, stride, 2 * STEP):
                store(high + k, most(load(low + k), load(high + k)))
                store(high + k + STEP, most(load(low + k + STEP), load(high + k + STEP)))


@njit
def mix(rows: int, n: int, here: int, matrix: int, m: int, into: int, stride: int) -> None:
    """Weighted sums of a block's rows. ``matrix``: float32, for each four outputs and each row the four weights."""
    for first in range(0, m, 4):
        weights = matrix + 4 * n * first
        target = into + stride * first
        for k in range(0, stride, 2 * STEP):
            a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = splat(np.float32(0.0))
            for row in range(n):
                at = word(rows + 8 * row) + here + k
                x, y = load(at), load(at + STEP)
                w = weights + 16 * row
                p, q, r, s = spread(w), spread(w + 4), spread(w + 8), spread(w + 12)
                a0, a1 = fma(p, x, a0), fma(p, y, a1)
                b0, b1 = fma(q, x, b0), fma(q, y, b1)
                c0, c1 = fma(r, x, c0), fma(r, y, c1)
                d0, d1 = fma(s, x, d0), fma(s, y, d1)
            store(target + k, a0)
            store(target + k + STEP, a1)
            store(target + stride + k, b0)
            store(target + stride + k + STEP, b1)
            store(target + 2 * stride + k, c0)
            store(target + 2 * stride + k + STEP, c1)
            store(target + 3 * stride + k, d0)
            store(target + 3 * stride + k + STEP, d1)


@njit
def _mean(block: int, stride: int, low: int, high: int, k: int, share: Any) -> Any:
    """The mean of ranks low..high at one place of a block; where it leaves float32 on the way, by float64."""
    mean = load(block + stride * low + k)
    for rank in range(low + 1, high + 1):
        mean = add(mean, load(block + stride * rank + k))
    mean = mul(mean, share)
    if beyond(mean):
        found = np.empty(STEP // 4, np.float32)
        store(found.ctypes.data, mean)
        for lane in range(STEP // 4):
            if not np.isfinite(found[lane]):
                exact = 0.0
                for rank in range(low, high + 1):
                    exact += np.float64(number(block + stride * rank + k + 4 * lane)) / (high - low + 1)
                found[lane] = np.float32(exact)
        mean = load(found.ctypes.data)
        hold(found)
    return mean


@njit
def _nearest(block: int, stride: int, n: int, count: int, k: int, center: Any, share: Any) -> Any:
    """The mean of the ``count`` sorted values nearest to a center, the least and the greatest of them.

    They are neighbours, so of all values whose ranks differ by multiples of ``count`` exactly one is among them: the last one
    that is nearer than the one before it. Of two equally near the lesser is taken.
    """
    low = high = mean = load(block + k)
    for first in range(count):
        taken = load(block + stride * first + k)
        before = taken
        for rank in range(first + count, n, count):
            after = load(block + stride * rank + k)
            taken = where_more(sub(center, before), sub(after, center), after, taken)
            before = after
        if first == 0:
            low = high = mean = taken
        else:
            low, high, mean = least(low, taken), most(high, taken), add(mean, taken)
    return mul(mean, share), low, high


@njit
def _exact_nearest(block: int, stride: int, n: int, count: int, k: int, center: Any, mean: Any) -> Any:
    """The same mean by float64 in the lanes where the other one left float32."""
    means, centers = np.empty(STEP // 4, np.float32), np.empty(STEP // 4, np.float32)
    store(means.ctypes.data, mean)
    store(centers.ctypes.data, center)
    for lane in range(STEP // 4):
        if not np.isfinite(means[lane]):
            column, start = block + k + 4 * lane, 0
            while start + count < n and centers[lane] - number(column + stride * start) > (
                number(column + stride * (start + count)) - centers[lane]
            ):
                start += 1
            exact = 0.0
            for rank in range(start, start + count):
                exact += np.float64(number(column + stride * rank)) / count
            means[lane] = np.float32(exact)
    mean = load(means.ctypes.data)
    hold(means)
    hold(centers)
    return mean


@njit
def _votes(rows: int, n: int, here: int, k: int) -> Any:
    """1, -1 or 0 for each column: the sign that more rows have."""
    zero, one, other = splat(np.float32(0.0)), splat(np.float32(1.0)), splat(np.float32(-1.0))
    votes = zero
    for row in range(n):
        value = load(word(rows + 8 * row) + here + k)
        votes = add(votes, where_more(value, zero, one, where_more(zero, value, other, zero)))
    return where_more(votes, zero, one, where_more(zero, votes, other, zero))


@njit
def _count(rows: int, n: int, here: int, k: int, low: Any, high: Any, survived: Any) -> None:
    for row in range(n):
        survived[row] += inside(load(word(rows + 8 * row) + here + k), low, high)


@njit
def _block(job: int, rows: int, here: int, out: int, block: int, following: int, survived: Any) -> None:
    """One block of columns: what ``ranks`` is about. ``rows``: addresses of m rows, ``here`` bytes before the block."""
    m, stride = word(job + 24), 4 * word(job + 8)
    mode, low, high, count = word(job + 80), word(job + 88), word(job + 96), word(job + 104)
    counting = word(job + 112) != 0
    zero = splat(np.float32(0.0))
    share = splat(np.float32(1.0 / (high - low + 1)))
    if mode == MAJORITY:
        for k in range(0, stride, STEP):
            sign = _votes(rows, m, here, k)
            store(out + k, sign)
            if counting:
                # A row survives where its sign is the result: in (0, inf], [-inf, 0) or at 0.
                tiny, huge = splat(np.float32(1e-45)), splat(np.float32(np.inf))
                least_kept = where_more(sign, zero, tiny, where_more(zero, sign, sub(zero, huge), zero))
                most_kept = where_more(sign, zero, huge, where_more(zero, sign, sub(zero, tiny), zero))
                _count(rows, m, here, k, least_kept, most_kept, survived)
        return
    _read_runs(rows, m, here, block, stride)
    _merge(block, stride, word(job + 64), word(job + 72), word(job + 40), word(job + 16), following)
    for k in range(0, stride, STEP):
        mean = _mean(block, stride, low, high, k, share)
        least_kept, most_kept = load(block + stride * low + k), load(block + stride * high + k)
        if mode == NEAREST:
            center = mean
            mean, least_kept, most_kept = _nearest(block, stride, m, count, k, center, splat(np.float32(1.0 / count)))
            if beyond(mean):
                mean = _exact_nearest(block, stride, m, count, k, center, mean)
        store(out + k, add(mean, zero))  # + 0 makes 0 of -0
        if counting:
            _count(rows, m, here, k, least_kept, most_kept, survived)


@cfunc(types.void(types.voidptr), cache=True)
def ranks(pointer: Any) -> None:
    """Aggregates chunks of columns until none is left. Any number of threads may run it on one job.

    The job is int64 words: 0 next chunk, 1 columns of a block, 2 rows n, 3 rows after mixing m, 4 columns d, 5 address of the
    rows' addresses, 6 of the matrix (or 0), 7 of the result, 8 of the table of comparisons, 9 their count, 10 mode,
    11 low, 12 high, 13 count, 14 address of the survivors' int64 counts (or 0), 15 columns of a chunk.
    """
    job = address_of(pointer)
    columns, n, m, d = word(job + 8), word(job + 16), word(job + 24), word(job + 32)
    rows, matrix, out, chunk = word(job + 40), word(job + 48), word(job + 56), word(job + 120)
    stride = 4 * columns
    space = np.empty((2 * m + n + 16) * columns, np.float32)
    block = (space.ctypes.data + 63) // 64 * 64
    mixed = block + stride * m
    staged = mixed + stride * (m + 4)
    addresses = np.empty(m + n, np.int64)
    for row in range(m):
        addresses[row] = mixed + stride * row
    for row in range(n):
        addresses[m + row] = staged + stride * row
    mixed_rows, staged_rows = addresses.ctypes.data, addresses.ctypes.data + 8 * m
    last = staged + stride * n
    survived = np.zeros(m, np.int64)
    while True:
        first = take_ticket(job) * chunk
        if first >= d:
            break
        for start in range(first, min(d, first + chunk), columns):
            width = min(columns, d - start)
            source, here, target = rows, 4 * start, out + 4 * start
            if width < columns:  # the end of the rows: lengthened by zeros
                for row in range(n):
                    for k in range(columns):
                        value = number(word(rows + 8 * row) + 4 * (start + k)) if k < width else np.float32(0.0)
                        put(staged + stride * row + 4 * k, value)
                source, here, target = staged_rows, 0, last
            if matrix:
                mix(source, n, here, matrix, m, mixed, stride)
                source, here = mixed_rows, 0
            _block(job, source, here, target, block, 4 * start + stride, survived)
            if width < columns:
                survived -= columns - width  # all rows agree on the zeros that were added
                for k in range(width):
                    put(out + 4 * (start + k), number(last + 4 * k))
    if word(job + 112):
        for row in range(m):
            add_at(word(job + 112) + 8 * row, survived[row])
    hold(space)
    hold(addresses)
