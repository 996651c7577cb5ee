"""Compiled kernels for sums over rows and over columns. Importing this module compiles them, or
loads them from the cache on disk.

Products of at most 2,048 columns are summed in float32, and these sums are added in float64. Each
chunk of columns has its own sums, which are added in the order of the chunks. So the number of
threads does not change a result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .compiled_cache import kernel
from .lanes import (
    STEP,
    add_at,
    add_products,
    address_of,
    beyond,
    draw_ticket,
    fetch_soon,
    fma,
    hold,
    load,
    load_four,
    load_tile,
    number,
    put,
    put_double,
    splat,
    splat_four,
    spread_four,
    store,
    store_tile,
    sub,
    total,
    word,
)

FLUSH = 2048
"""Number of columns after which float32 sums are added to float64 sums."""
AHEAD = 1024
"""Distance in bytes at which rows are prefetched, so that the data arrive in time."""


@njit
def _tile(first: int, second: int, stride: int, sums: int) -> None:
    """Add the products of four rows with three rows, over one block, to twelve sums. The sums are
    in registers."""
    found = load_tile(sums)
    for k in range(0, stride, STEP):
        found = add_products(found, first + k, second + k, stride)
    store_tile(sums, found)


@njit
def _center(row: int, reference: int, at: int, width: int, into: int, stride: int) -> None:
    """Write one row's block minus the block of the reference, padded with zeros after ``width``
    columns. An address of 0 means a row of zeros."""
    zero = splat(np.float32(0.0))
    whole = width * 4 // STEP * STEP
    for k in range(0, whole, STEP):
        value = load(row + at + k) if row else zero
        store(into + k, sub(value, load(reference + at + k)) if reference else value)
    if whole < stride:
        for k in range(whole, stride, STEP):
            store(into + k, zero)
        for k in range(whole, 4 * width, 4):
            value = number(row + at + k) if row else np.float32(0.0)
            put(into + k, value - number(reference + at + k) if reference else value)


@kernel
def gram(pointer: Any) -> None:
    """Compute inner products of all rows minus a reference, one chunk of columns after the other.

    The job has int64 words. Words 0 to 3: next chunk; columns of a block; m, rows; d, columns.
    Words 4 and 5: address of the rows' addresses, of the reference (or 0). Word 6: columns of a
    chunk. Word 7: address of the result, float64 (chunks, m, m); only upper triangles are written.
    """
    job = address_of(pointer)
    columns, m, d, rows, reference = (
        word(job + 8),
        word(job + 16),
        word(job + 24),
        word(job + 32),
        word(job + 40),
    )
    chunk, out = word(job + 48), word(job + 56)
    stride = 4 * columns
    # Tiles extend beyond row m. The additional rows stay zero.
    space = np.zeros((m + 4) * columns + 16, np.float32)
    block = (space.ctypes.data + 63) // 64 * 64
    tiles = 0
    for i in range(0, m, 4):
        tiles += (m - i + 2) // 3
    sums = np.empty((tiles * 12, STEP // 4), np.float32)
    products = np.empty((m + 4, m + 4), np.float64)
    lines = stride // 64
    share = (m * lines + tiles - 1) // tiles
    while True:
        ticket = draw_ticket(job)
        first = ticket * chunk
        if first >= d:
            break
        products[:] = 0.0
        sums[:] = np.float32(0.0)
        since = 0
        last = min(d, first + chunk)
        for start in range(first, last, columns):
            width = min(columns, last - start)
            for row in range(m):
                _center(
                    word(rows + 8 * row), reference, 4 * start, width, block + stride * row, stride
                )
            tile = sums.ctypes.data
            row, line = 0, 0
            for i in range(0, m, 4):
                for j in range(i, m, 3):
                    for _ in range(share):
                        if row < m:
                            fetch_soon(word(rows + 8 * row) + 4 * start + stride + 64 * line)
                            line += 1
                            if line == lines:
                                row, line = row + 1, 0
                    _tile(block + stride * i, block + stride * j, stride, tile)
                    tile += 12 * STEP
            since += width
            if since >= FLUSH or start + width >= last:
                since = 0
                t = 0
                for i in range(0, m, 4):
                    for j in range(i, m, 3):
                        for a in range(4):
                            for b in range(3):
                                products[i + a, j + b] += np.float64(
                                    total(load(sums.ctypes.data + STEP * t))
                                )
                                t += 1
                sums[:] = np.float32(0.0)
        place = out + 8 * m * m * ticket
        for i in range(m):
            for j in range(i, m):
                put_double(place + 8 * (m * i + j), products[i, j])
    hold(space)


@kernel
def weighted(pointer: Any) -> None:
    """Compute the weighted sum of the rows in one pass.

    The job has int64 words. Word 0: next chunk. Word 1 is an output: the number of elements that
    are not finite. Words 2 and 3: n, rows; d, columns. Words 4 to 6: address of the rows'
    addresses, of n float32 weights, of the result. Word 7: columns of a chunk.
    """
    job = address_of(pointer)
    n, d, rows, weights = word(job + 16), word(job + 24), word(job + 32), word(job + 40)
    out, chunk = word(job + 48), word(job + 56)
    zero = splat_four(np.float32(0.0))
    wrong = 0
    while True:
        first = draw_ticket(job) * chunk
        if first >= d:
            break
        last = min(d, first + chunk)
        end = first + (last - first) // 32 * 32
        for k in range(4 * first, 4 * end, 4 * STEP):
            found = zero
            for row in range(n):
                at = word(rows + 8 * row) + k
                found = fma(spread_four(weights + 4 * row), load_four(at), found)
                fetch_soon(at + AHEAD)
                fetch_soon(at + AHEAD + 64)
            wrong += beyond(found)
            store(out + k, found)
        for k in range(4 * end, 4 * last, 4):
            value = np.float32(0.0)
            for row in range(n):
                value += number(weights + 4 * row) * number(word(rows + 8 * row) + k)
            if not np.isfinite(value):
                wrong += 1
            put(out + k, value)
    if wrong:
        add_at(job + 8, wrong)


@njit
def _square(row: int, center: int, width: int) -> float:
    """Return the sum of the squares of a row minus a center, over ``width`` columns. If ``center``
    is 0, nothing is subtracted."""
    squares = splat_four(np.float32(0.0))
    whole = 4 * width // (4 * STEP) * 4 * STEP
    for k in range(0, whole, 4 * STEP):
        apart = load_four(row + k)
        if center:
            apart = sub(apart, load_four(center + k))
        squares = fma(apart, apart, squares)
        fetch_soon(row + k + AHEAD)
        fetch_soon(row + k + AHEAD + 64)
    rest = np.float32(0.0)
    for k in range(whole, 4 * width, 4):
        value = number(row + k)
        if center:
            value -= number(center + k)
        rest += value * value
    return np.float64(total(squares)) + np.float64(rest)


@kernel
def squares(pointer: Any) -> None:
    """Compute squared distances of rows to a center, one chunk of columns after the other.

    The job has int64 words. Words 0 to 3: next chunk; columns of a block; n, rows; d, columns.
    Words 4 and 5: address of the rows' addresses, of the center (or 0). Word 6: columns of a chunk.
    Word 7: address of the result, float64 (chunks, n).
    """
    job = address_of(pointer)
    columns, n, d, rows, center = (
        word(job + 8),
        word(job + 16),
        word(job + 24),
        word(job + 32),
        word(job + 40),
    )
    chunk, out = word(job + 48), word(job + 56)
    while True:
        ticket = draw_ticket(job)
        first = ticket * chunk
        if first >= d:
            break
        last = min(d, first + chunk)
        for row in range(n):
            found = 0.0
            at = word(rows + 8 * row)
            for start in range(first, last, columns):
                middle = center + 4 * start if center else 0
                found += _square(at + 4 * start, middle, min(columns, last - start))
            put_double(out + 8 * (n * ticket + row), found)
