"""Sums and distances that a single absurd update cannot spoil: blocked, float64 where it counts, finite whatever comes.

The updates stay in float32 as they are; only sums over blocks of coordinates are kept in float64. A row whose squares
overflow or vanish in float32 is looked at again in float64, alone, so the usual case pays nothing for the unusual one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**19  # of (n, columns): a few MB, so that a block and its copies stay in cache
HUGE = 1e300  # stands for whatever is larger, so that sums of a few of them stay finite
HUGE_FACTOR = 1e130  # the same, for what is multiplied with another
TINY_NORM = 1e-15  # below it float32 squares lose digits or vanish
OUTLYING_MAX = torch.finfo(torch.float32).max


def blocks(updates: Tensor) -> Iterator[slice]:
    """Slices over the columns of ``(n, d)``, none so large that its copies fall out of cache."""
    n, d = updates.shape
    count = -(-d // max(4096, BLOCK_ELEMENTS // max(1, n)))
    width = -(-d // count)  # equal blocks: a short last one would cost as many calls as a full one
    return (slice(start, min(start + width, d)) for start in range(0, d, width))


def working_dtype(tensor: Tensor) -> torch.dtype:
    """float64 for float64, float32 for everything else: half precision is stored, never calculated with."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


class Apart(Protocol):
    """Updates that are not one tensor: see ``passes.Rows``."""

    @property
    def n(self) -> int: ...
    @property
    def d(self) -> int: ...
    def row(self, index: int) -> Tensor: ...
    def block(self, columns: slice) -> Tensor: ...
    def blocks(self) -> Iterator[slice]: ...


def distances_to(updates: Tensor | Apart, center: Tensor | None = None) -> Tensor:
    """``(n,)`` float64 on the CPU: Euclidean distance of each row of ``(n, d)`` to ``center``, or to zero. Finite."""
    return torch.tensor(distance_list(updates, center), dtype=torch.float64)


def distance_list(updates: Tensor | Apart, center: Tensor | None = None) -> list[float]:
    """``distances_to`` as numbers: arithmetic on a few of them is quicker in Python than in torch."""
    work = working_dtype(updates[0] if isinstance(updates, Tensor) else updates.row(0))
    parts = []
    for columns in blocks(updates) if isinstance(updates, Tensor) else updates.blocks():
        block = (updates[:, columns] if isinstance(updates, Tensor) else updates.block(columns)).to(work)
        if center is not None:
            block = block - center[columns].to(work)
        parts.append(torch.linalg.vector_norm(block, dim=1).tolist())
    distances = parts[0] if len(parts) == 1 else [math.hypot(*pieces) for pieces in zip(*parts, strict=True)]
    for row, distance in enumerate(distances):
        if not TINY_NORM < distance < OUTLYING_MAX:  # 0, vanished or overflowed
            exact = (updates[row] if isinstance(updates, Tensor) else updates.row(row)).to(torch.float64)
            if center is not None:
                exact = exact - center.to(torch.float64)
            distances[row] = norm(exact)
    return distances


def norm(vector: Tensor) -> float:
    """Euclidean norm of a vector of any magnitude; at most ``HUGE``."""
    quick = plain_norm(vector)
    if TINY_NORM < quick < OUTLYING_MAX:
        return quick
    largest = float(torch.linalg.vector_norm(vector, float("inf"), dtype=torch.float64))
    if largest == 0.0:
        return 0.0
    if not largest < HUGE:
        return HUGE
    return min(HUGE, largest * float(torch.linalg.vector_norm(vector.to(torch.float64) / largest)))


def plain_norm(vector: Tensor) -> float:
    """The plain norm: float32 within a block, float64 over the blocks."""
    work = working_dtype(vector)
    return math.hypot(*(float(torch.linalg.vector_norm(part.to(work))) for part in torch.split(vector, BLOCK_ELEMENTS)))


def gram_around(updates: Tensor, center: Tensor) -> Tensor:
    """``(n, n)`` float64 on the CPU: inner products of all rows minus ``center``. Finite.

    With it the distance of every row to any weighted sum of them costs n^2 operations and no look at the updates.
    ``center`` must be near most rows: what cancels is as large as they are far from it.
    """
    gram = _gram(updates, center, working_dtype(updates))
    squares = gram.diagonal().tolist()
    vanished = any(
        square < TINY_NORM**2 and not (square == 0.0 and torch.equal(update, center))
        for update, square in zip(updates, squares, strict=True)
    )
    if vanished or not math.isfinite(sum(squares)):
        return _gram(updates, center, torch.float64)
    return gram


def _gram(updates: Tensor, center: Tensor, work: torch.dtype) -> Tensor:
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for columns in blocks(updates):
        block = updates[:, columns].to(work) - center[columns].to(work)
        if work == torch.float64:
            block.clamp_(-HUGE_FACTOR, HUGE_FACTOR)
        gram += (block @ block.T).to("cpu", torch.float64)
    return gram


def squared_distances(updates: Tensor) -> Tensor:
    """``(n, n)`` float64 on the CPU: squared distance of every pair of rows, from their differences. Finite, symmetric.

    Not from inner products: on parameters (rows 10 +- 1e-3) ``|a|^2 + |b|^2 - 2ab`` in float32 is all rounding.
    """
    n = len(updates)
    pairs = _pair_squares(updates, working_dtype(updates))
    # An identical pair is zero in either precision, but only float64 can tell it from one that vanished.
    if not bool(((pairs > TINY_NORM**2) & (pairs < OUTLYING_MAX)).all()):
        pairs = _pair_squares(updates, torch.float64)
    square = torch.zeros(n, n, dtype=torch.float64)
    upper = torch.triu_indices(n, n, 1)
    square[upper[0], upper[1]] = pairs
    return square + square.T


def _pair_squares(updates: Tensor, work: torch.dtype) -> Tensor:
    n = len(updates)
    squares = torch.zeros(n * (n - 1) // 2, dtype=torch.float64)
    for columns in blocks(updates):
        block = updates[:, columns].to(work).contiguous()
        squares += torch.nn.functional.pdist(block).to("cpu", torch.float64).square_()
    return squares.clamp_(max=HUGE)


def average(rows: Sequence[Tensor]) -> Tensor:
    """The mean of rows, at least in float32; finite when they are."""
    total = rows[0].to(working_dtype(rows[0]))
    if len(rows) == 1:
        return total
    total = total + rows[1]  # memory of its own from here on
    for row in rows[2:]:
        total += row
    total *= 1.0 / len(rows)
    if math.isfinite(float(total.sum())):
        return total
    return torch.stack([row.to(torch.float64) / len(rows) for row in rows]).sum(dim=0)


def projections(updates: Tensor, direction: Tensor, norms: Tensor) -> Tensor:
    """``(n,)`` float64 on the CPU: inner product of ``direction`` with each row divided by its norm. 0 for a zero row."""
    work = working_dtype(updates)
    dots = torch.zeros(len(updates), dtype=torch.float64)
    for columns in blocks(updates):
        dots += (updates[:, columns].to(work) @ direction[columns].to(work)).to("cpu", torch.float64)
    result = torch.zeros_like(dots)
    for row, (dot, length) in enumerate(zip(dots.tolist(), norms.tolist(), strict=True)):
        if length == 0.0:
            continue
        if length > TINY_NORM and abs(dot) < OUTLYING_MAX:
            result[row] = dot / length
        else:
            result[row] = float((updates[row].to(torch.float64) / length) @ direction.to(torch.float64))
    return result


def weighted_sum(updates: Tensor, weights: Sequence[float]) -> Tensor:
    """``(d,)`` in the dtype of ``updates``: the sum of the rows, each times its weight."""
    sizes = [abs(weight) for weight in weights if weight]
    extreme = bool(sizes) and not (min(sizes) > 1e-30 and max(sizes) < 1e30)
    work = torch.float64 if extreme else working_dtype(updates)
    factors = torch.tensor(weights, dtype=work, device=updates.device)
    if updates.dtype == work:
        return factors @ updates
    return torch.cat([(factors @ updates[:, columns].to(work)).to(updates.dtype) for columns in blocks(updates)])


def relative(distances: Tensor, floor: float = 0.0) -> Tensor:
    """Distances in units of their median; all ones when the median is zero and nobody stands out.

    Args:
        distances: ``(n,)`` float64, >= 0.
        floor: What rounding alone makes of a distance: when the median is not above it nobody is nearer than typical.
    """
    if not len(distances):
        return torch.ones_like(distances)
    return in_units_of(statistics.median(distances.tolist()), distances, floor)


def in_units_of(typical: float, distances: Tensor, floor: float = 0.0) -> Tensor:
    """``distances / typical``, never above the largest float32; with a typical distance below ``floor``, at least 1."""
    if typical > floor:
        return (distances / typical).clamp_(max=OUTLYING_MAX)
    if floor > 0:
        return (distances / floor).clamp_(min=1.0, max=OUTLYING_MAX)
    return torch.where(distances > 0, torch.full_like(distances, OUTLYING_MAX), torch.ones_like(distances))


def resolution(vector: Tensor) -> float:
    """The distance that rounding alone can put between equal vectors of this size and dtype."""
    return 4 * torch.finfo(vector.dtype).eps * norm(vector)
