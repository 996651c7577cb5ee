"""Plain kernels, which need no compiler: torch and numpy on chunks of columns, for every dtype and
device.

float64 updates are computed in float64, all others in float32. The order of operations is that of
the compiled kernels, so both implementations select bit-identical values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import network, precision
from .rows import Rows

# Maximum number of elements in a chunk for ranks: the chunk and its copy fit in the second-level
# cache.
RANK_ELEMENTS = 2**18
FEW = 4096  # Maximum number of elements for which one sort is faster than a call per comparison.
FLUSH = 4096  # Number of columns after which float32 sums are added in float64.
HUGE_FACTOR = 1e130  # Float64 values are clipped to this, so that their products do not overflow.
Counts: TypeAlias = NDArray[np.float64]
_Part: TypeAlias = tuple[Any, Any]


def working(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32, because half precision is only a storage format."""
    return torch.float64 if dtype == torch.float64 else torch.float32


# --- ranks of each coordinate ---------------------------------------------------------------------
# These functions use numpy on the CPU, because torch would wake its threads for each of many short
# operations. On other devices they use torch.


def between(
    rows: Rows, low: int, high: int, count_survivors: int, matrix: NDArray[np.float32] | None
) -> tuple[Tensor, Counts | None]:
    """Return the mean of the sorted values low..high of each column."""

    def part(block: Any) -> _Part:
        kept = ranked(block, low, high)
        return mean_of(kept), _survived(block, kept[0], kept[-1]) if count_survivors else None

    return _each_chunk(rows, matrix, part, count_survivors)


def nearest(
    rows: Rows,
    count: int,
    around: tuple[int, int],
    count_survivors: int,
    matrix: NDArray[np.float32] | None,
) -> tuple[Tensor, Counts | None]:
    """Return the mean of the ``count`` values of each column nearest to the mean of its sorted
    values ``around``. If two values are equally near, the smaller value is used."""

    def part(block: Any) -> _Part:
        library = _library(block)
        ranks = ranked(block, 0, len(block) - 1)
        center = mean_of(ranks[around[0] : around[1] + 1])
        taken = ranks[:count]
        # The nearest values have consecutive ranks. So among values with ranks that differ by
        # multiples of ``count``, exactly one is among the nearest.
        for rank in range(count, len(ranks)):
            moves = center - ranks[rank - count] > ranks[rank] - center
            taken[rank % count] = library.where(moves, ranks[rank], taken[rank % count])
        if not count_survivors:
            return mean_of(taken), None
        return mean_of(taken), _survived(
            block, reduce(library.minimum, taken), reduce(library.maximum, taken)
        )

    return _each_chunk(rows, matrix, part, count_survivors)


def majority(
    rows: Rows, count_survivors: int, matrix: NDArray[np.float32] | None
) -> tuple[Tensor, Counts | None]:
    """Return the sign of most rows in each column: 1 or -1; 0 for a tie."""

    def part(block: Any) -> _Part:
        library = _library(block)
        signs = library.sign(block)
        winner = library.sign(signs.sum(0))
        return winner, (signs == winner).sum(1) if count_survivors else None

    return _each_chunk(rows, matrix, part, count_survivors)


def ranked(block: Any, low: int, high: int) -> list[Any]:
    """Return the values with ranks low..high of each column of ``(n, c)``, one row per rank.

    If there are many columns, whole rows are compared, because sorting each column takes several
    times as long.
    """
    if isinstance(block, Tensor):
        return list(block.sort(dim=0).values[low : high + 1])
    if block.size <= FEW:
        ordered = np.sort(block, axis=0)
        # The result must be NaN if a value is NaN, but sorting would hide it.
        if not np.isnan(ordered[-1]).any():
            return list(ordered[low : high + 1])
    rows = list(np.array(block, order="C"))
    spare = np.empty_like(rows[0])
    for _, _, a, b, kind in network.comparisons(len(rows), low, high):
        if kind == network.BOTH:
            np.minimum(rows[a], rows[b], out=spare)
            np.maximum(rows[a], rows[b], out=rows[b])
            rows[a], spare = spare, rows[a]
        elif kind == network.LESSER:
            np.minimum(rows[a], rows[b], out=rows[a])
        else:
            np.maximum(rows[a], rows[b], out=rows[b])
    return rows[low : high + 1]


def mean_of(values: Sequence[Any]) -> Any:
    """Return the mean of rows, which are added in order. It is finite if all rows are finite."""
    share = 1.0 / len(values)
    mean = values[0] + 0.0  # a copy, in which -0 becomes 0
    for row in values[1:]:
        mean += row
    mean *= float(np.float32(share)) if mean.itemsize == 4 else share
    mean += 0.0
    if math.isfinite(float(mean.sum())):
        return mean
    library = _library(mean)
    double = [
        row.to(torch.float64) if isinstance(row, Tensor) else row.astype(np.float64)
        for row in values
    ]
    exact: Any = sum(row / len(values) for row in double)
    exact = exact.to(mean.dtype) if isinstance(exact, Tensor) else exact.astype(mean.dtype)
    return library.where(library.isfinite(mean), mean, exact)


def _library(block: Any) -> Any:
    return torch if isinstance(block, Tensor) else np


def _survived(block: Any, low: Any, high: Any) -> Any:
    return ((block >= low) & (block <= high)).sum(1)


def _each_chunk(
    rows: Rows, matrix: NDArray[np.float32] | None, part: Callable[[Any], _Part], counting: int
) -> tuple[Tensor, Counts | None]:
    """Apply ``part`` to one chunk after the other. Threads are not used, because they would wait
    longer for the interpreter lock than they compute."""
    work = working(rows.dtype)
    on_cpu = rows.device.type == "cpu"
    mixing = None if matrix is None else torch.from_numpy(matrix).to(rows.device, work)
    aggregates, parts = [], max(1, counting)
    counts = np.zeros((parts, rows.n if mixing is None else len(mixing)))
    for columns in rows.blocks(RANK_ELEMENTS, parts):
        block = _in(work, rows.block(columns))
        if mixing is not None:
            with precision.full():
                block = mixing @ block
        with np.errstate(over="ignore", invalid="ignore"):
            result, survived = part(block.numpy() if on_cpu else block)
        aggregates.append(_in(rows.dtype, torch.from_numpy(result) if on_cpu else result))
        if survived is not None:
            at = columns.start * parts // rows.d
            counts[at] += survived if on_cpu else survived.cpu().numpy()
    aggregate = aggregates[0] if len(aggregates) == 1 else torch.cat(aggregates)
    return aggregate, by_part(counts) if counting else None


def by_part(counts: NDArray[Any]) -> Counts:
    """Return survivor counts ``(parts, n)`` as float64; ``(n,)`` if there is one part."""
    return np.asarray((counts[0] if len(counts) == 1 else counts).astype(np.float64))


def _in(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Return ``tensor.to(dtype)``. If the tensor has that dtype already, this is faster."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


# --- sums over rows and columns -------------------------------------------------------------------


def gram(
    rows: Rows, reference: Tensor | None, points: Sequence[Tensor | None]
) -> NDArray[np.float64]:
    """Return inner products of all rows and points after subtraction of the reference. Products
    outside the range of float32 are recomputed in float64."""
    products = _products(rows, reference, points, range(rows.n + len(points)), working(rows.dtype))
    return mend(products, rows, reference, points)


def mend(
    products: NDArray[np.float64],
    rows: Rows,
    reference: Tensor | None,
    points: Sequence[Tensor | None],
) -> NDArray[np.float64]:
    """Recompute in float64 the products of rows with squares that overflow in float32 or nearly
    underflow."""
    squares = products.diagonal()
    wrong = [
        at
        for at in np.flatnonzero(~((squares > 1e-30) & (squares < 1e38))).tolist()
        if not (
            squares[at] == 0.0
            and _is_reference(rows.row(at) if at < rows.n else points[at - rows.n], reference)
        )
    ]
    if wrong and rows.dtype != torch.float64:
        exact = _products(rows, reference, points, wrong, torch.float64)
        products[wrong, :] = exact
        products[:, wrong] = exact.T
    return products


def _is_reference(row: Tensor | None, reference: Tensor | None) -> bool:
    """Whether a row with the square 0 equals the reference. Otherwise the square has underflowed.
    ``None`` is the zero vector."""
    if row is None or reference is None:
        other = reference if row is None else row
        return other is None or not bool(other.any())
    return row.data_ptr() == reference.data_ptr() or torch.equal(
        row, reference.to(row.device, row.dtype)
    )


@precision.full()
def _products(
    rows: Rows,
    reference: Tensor | None,
    points: Sequence[Tensor | None],
    these: Sequence[int],
    work: torch.dtype,
) -> NDArray[np.float64]:
    """Return the products of ``these`` rows with all rows, ``(these, m)`` float64."""
    m = rows.n + len(points)
    whole = len(these) == m
    found = np.zeros((len(these), m))
    for columns in rows.blocks():
        block = _centered(rows, columns, reference, points, work)
        if work == torch.float64:
            block = block.clamp(-HUGE_FACTOR, HUGE_FACTOR)
        some = block if whole else block[list(these)]
        # Multiply all pieces in one call, because every call wakes torch's threads.
        pieces = block.shape[1] // FLUSH
        if pieces:
            left, right = (
                x[:, : pieces * FLUSH].reshape(len(x), pieces, FLUSH).transpose(0, 1)
                for x in (some, block)
            )
            found += (
                torch.bmm(left, right.transpose(1, 2)).to("cpu", torch.float64).numpy().sum(axis=0)
            )
        rest = slice(pieces * FLUSH, block.shape[1])
        if rest.start == rest.stop:
            continue
        found += some[:, rest].mm(block[:, rest].T).cpu().numpy()
    return found


def _centered(
    rows: Rows,
    columns: slice,
    reference: Tensor | None,
    points: Sequence[Tensor | None],
    work: torch.dtype,
) -> Tensor:
    """Return ``(n + points, c)``: these columns of all rows and points minus the reference.

    If there is a reference or a point, the result is a copy. If it also has at least ``FLUSH``
    columns, it is padded with zeros to a multiple of ``FLUSH``.
    """
    center = None if reference is None else reference[columns].to(rows.device, work)
    if not points and center is None:
        return _in(work, rows.block(columns))
    width = columns.stop - columns.start
    whole = torch.empty(
        rows.n + len(points),
        width if width < FLUSH else -(-width // FLUSH) * FLUSH,
        dtype=work,
        device=rows.device,
    )
    whole[:, width:] = 0.0
    made = whole[:, :width]
    rows.put(columns, center, made)
    for at, point in enumerate(points, rows.n):
        made[at] = 0.0 if point is None else point[columns]
        if center is not None:
            made[at] -= center
    return whole


def squared_distances_to(rows: Rows, center: Tensor | None) -> NDArray[np.float64]:
    """Return ``(n,)``: squared Euclidean distance of each row to a center, or to zero."""
    work = working(rows.dtype)
    found = np.zeros(rows.n)
    for columns in rows.blocks():
        block = _in(work, rows.block(columns))
        if center is not None:
            block = block - center[columns].to(rows.device, work)
        found += torch.linalg.vector_norm(block, dim=1).cpu().numpy().astype(np.float64) ** 2
    return mend_squares(found, rows, center)


def mend_squares(
    found: NDArray[np.float64], rows: Rows, center: Tensor | None
) -> NDArray[np.float64]:
    """Recompute in float64 the squared distances that overflow in float32 or nearly underflow."""
    for at in np.flatnonzero(~((found > 1e-30) & (found < 1e38))).tolist():
        if found[at] == 0.0 and _is_reference(rows.row(at), center):
            continue
        found[at] = 0.0
        for columns in rows.blocks():
            part = rows.row(at)[columns].to(torch.float64)
            if center is not None:
                part = part - center[columns].to(rows.device, torch.float64)
            part = part.clamp(-HUGE_FACTOR, HUGE_FACTOR)
            found[at] += float(part.dot(part))
    return found


def weighted_sum(rows: Rows, weights: NDArray[np.float64]) -> Tensor:
    """Return the weighted sum of the rows."""
    work = torch.float64 if are_extreme(weights) else working(rows.dtype)
    result = _weighted_sum(rows, weights, work)
    return result if math.isfinite(float(result.sum())) else exact_weighted_sum(rows, weights)


def are_extreme(weights: NDArray[np.float64]) -> bool:
    """Whether a nonzero weight is near the smallest or largest magnitude of float32."""
    sizes = np.abs(weights[weights != 0])
    return bool(len(sizes)) and not (sizes.min() > 1e-30 and sizes.max() < 1e30)


def exact_weighted_sum(rows: Rows, weights: NDArray[np.float64]) -> Tensor:
    """Return the weighted sum of the rows, computed in float64. It is clipped to the range of the
    rows' dtype, so that it is finite for all rows."""
    return _weighted_sum(rows, weights, torch.float64)


@precision.full()
def _weighted_sum(rows: Rows, weights: NDArray[np.float64], work: torch.dtype) -> Tensor:
    as_it_is = work == working(rows.dtype) == rows.dtype
    factors, blocks = torch.from_numpy(weights).to(rows.device, work), rows.blocks()
    if as_it_is and len(blocks) == 1:
        return factors @ rows.block(blocks[0])
    greatest = torch.finfo(rows.dtype).max
    result = torch.empty(rows.d, dtype=rows.dtype, device=rows.device)
    for columns in blocks:
        part = factors @ rows.block(columns).to(work)
        result[columns] = part if as_it_is else part.clamp(-greatest, greatest).to(rows.dtype)
    return result


@precision.full()
def mixed(rows: Rows, matrix: NDArray[np.float64]) -> Tensor:
    """Return ``(m, d)``: m sums of the rows with the weights ``matrix`` ``(m, n)``."""
    work = working(rows.dtype)
    result = torch.empty(len(matrix), rows.d, dtype=rows.dtype, device=rows.device)
    factors = torch.from_numpy(matrix).to(rows.device, work)
    for columns in rows.blocks():
        result[:, columns] = (factors @ rows.block(columns).to(work)).to(rows.dtype)
    return result
