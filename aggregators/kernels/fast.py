"""Calls the compiled kernels for float32 rows on the CPU. The results are those of the plain
kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import network, plain
from .rows import Rows
from .teams import Compiled, run

COLUMNS = 128  # Columns of a block. With 20 rows a block takes a third of the first-level cache.
CHUNK = 8192  # Columns of a chunk, which one thread processes.
CHUNKS_MAX = 256  # Maximum number of chunks for kernels that return a result for each chunk.
ALONE = 2**15  # Number of elements below which a second thread takes more time than it saves.


def between(
    rows: Rows, low: int, high: int, count_survivors: int, matrix: NDArray[np.float32] | None
) -> tuple[Tensor, plain.Counts | None]:
    found = _ranks(rows, matrix, 0, low, high, 0, (low, high), count_survivors)
    return found or plain.between(rows, low, high, count_survivors, matrix)


def nearest(
    rows: Rows,
    count: int,
    around: tuple[int, int],
    count_survivors: int,
    matrix: NDArray[np.float32] | None,
) -> tuple[Tensor, plain.Counts | None]:
    m = rows.n if matrix is None else len(matrix)
    found = _ranks(rows, matrix, 1, around[0], around[1], count, (0, m - 1), count_survivors)
    return found or plain.nearest(rows, count, around, count_survivors, matrix)


def majority(
    rows: Rows, count_survivors: int, matrix: NDArray[np.float32] | None
) -> tuple[Tensor, plain.Counts | None]:
    found = _ranks(rows, matrix, 2, 0, 0, 0, (0, 0), count_survivors)
    return found or plain.majority(rows, count_survivors, matrix)


def _ranks(
    rows: Rows,
    matrix: NDArray[np.float32] | None,
    mode: int,
    low: int,
    high: int,
    count: int,
    wanted: tuple[int, int],
    count_survivors: int,
) -> tuple[Tensor, plain.Counts | None] | None:
    """Return the result of the compiled ``ranks``. Return None if a value may be NaN, because
    sorting loses NaNs; the plain kernels keep them."""
    from .compiled_ranks import ranks

    addresses = _addresses(rows)
    m = rows.n if matrix is None else len(matrix)
    weights = _in_fours(matrix) if matrix is not None else None
    table = network.table(m, *wanted)
    parts = max(1, count_survivors)
    survived = np.zeros((parts, m), np.int64)
    chunk = CHUNK if parts == 1 else rows.d // parts
    aggregate = torch.empty(rows.d)
    columns = COLUMNS if rows.n <= 32 else COLUMNS // 2
    job = _job(
        columns,
        rows.n,
        m,
        rows.d,
        addresses.ctypes.data,
        0 if weights is None else weights.ctypes.data,
        aggregate.data_ptr(),
        table.ctypes.data,
        len(table),
        mode,
        low,
        high,
        count,
        survived.ctypes.data if count_survivors else 0,
        chunk,
        0,
        0 if parts == 1 else 8 * m,
    )
    _run(ranks, job, rows, chunk)
    if job[16]:
        return None
    return aggregate, plain.by_part(survived) if count_survivors else None


def gram(
    rows: Rows, reference: Tensor | None, points: Sequence[Tensor | None]
) -> NDArray[np.float64]:
    from .compiled_sums import gram as kernel

    kept = [None if point is None else _vector(point, rows) for point in points]
    middle = None if reference is None else _vector(reference, rows)
    addresses = np.concatenate(
        [
            _addresses(rows),
            np.array([_pointer(point) for point in kept], dtype=np.int64),
        ]
    )
    m = len(addresses)
    chunk, count = _chunks(rows.d)
    parts = np.zeros((count, m, m))
    columns = 256 if m <= 24 else 128
    job = _job(
        columns,
        m,
        rows.d,
        addresses.ctypes.data,
        _pointer(middle),
        chunk,
        parts.ctypes.data,
    )
    _run(kernel, job, rows, chunk)
    products: NDArray[np.float64] = parts.sum(axis=0)
    products += np.triu(products, 1).T
    return plain.mend(products, rows, reference, points)


def squared_distances_to(rows: Rows, center: Tensor | None) -> NDArray[np.float64]:
    from .compiled_sums import squares

    middle = None if center is None else _vector(center, rows)
    addresses = _addresses(rows)
    chunk, count = _chunks(rows.d)
    parts = np.zeros((count, rows.n))
    job = _job(
        2048,
        rows.n,
        rows.d,
        addresses.ctypes.data,
        _pointer(middle),
        chunk,
        parts.ctypes.data,
    )
    _run(squares, job, rows, chunk)
    return plain.mend_squares(parts.sum(axis=0), rows, center)


def weighted_sum(rows: Rows, weights: NDArray[np.float64]) -> Tensor:
    from .compiled_sums import weighted

    if plain.are_extreme(weights):
        return plain.exact_weighted_sum(rows, weights)
    used = np.flatnonzero(weights)
    factors = weights[used].astype(np.float32)
    if len(used) == 1 and factors[0] == 1.0:
        return rows.row(int(used[0])).clone()
    addresses = _addresses(rows)[used]
    result = torch.empty(rows.d)
    job = _job(
        0, len(used), rows.d, addresses.ctypes.data, factors.ctypes.data, result.data_ptr(), CHUNK
    )
    _run(weighted, job, rows, CHUNK)
    return result if job[1] == 0 else plain.exact_weighted_sum(rows, weights)


def _run(kernel: Compiled, job: NDArray[np.int64], rows: Rows, chunk: int) -> None:
    threads = min(torch.get_num_threads(), -(-rows.d // chunk), max(1, rows.n * rows.d // ALONE))
    run(kernel, job, threads)


def _job(*words: int) -> NDArray[np.int64]:
    return np.array((0, *words), dtype=np.int64)


def _chunks(d: int) -> tuple[int, int]:
    """Return the number of columns in a chunk, and the number of chunks. Both depend only on d, so
    the number of threads never changes a sum."""
    chunk = max(CHUNK, -(-d // CHUNKS_MAX // 2048) * 2048)
    return chunk, -(-d // chunk)


def _addresses(rows: Rows) -> NDArray[np.int64]:
    found = rows.addresses()
    assert found is not None
    return found


def _pointer(vector: Tensor | None) -> int:
    """Return the address of a vector; 0 if there is none."""
    return 0 if vector is None else vector.data_ptr()


def _vector(vector: Tensor, rows: Rows) -> Tensor:
    return vector.detach().to(rows.device, torch.float32).contiguous()


def _in_fours(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the matrix in the layout that ``mix`` reads, padded with zeros: in groups of four sums
    with four weights for each row."""
    m, n = matrix.shape
    full = np.zeros((-(-m // 4) * 4, n), np.float32)
    full[:m] = matrix
    return np.ascontiguousarray(full.reshape(-1, 4, n).transpose(0, 2, 1))
