"""The passes over the updates that rules are made of, in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.errors import AggregationError

from .arithmetic import BLOCK_ELEMENTS, HUGE_FACTOR, TINY_NORM, average, working_dtype
from .sorting import ranked

FloatArray = NDArray[np.float64]
Updates: TypeAlias = "Tensor | Sequence[Tensor] | Sequence[NDArray[np.float32]] | Rows"


@dataclass(frozen=True, slots=True)
class Rows:
    """n updates of d coordinates each, wherever they lie; never stacked as a whole."""

    vectors: tuple[Tensor, ...]

    @classmethod
    def of(cls, updates: Updates) -> Rows:
        if isinstance(updates, Rows):
            return updates
        if isinstance(updates, Tensor):
            if updates.ndim != 2:
                raise AggregationError(f"updates are an (n, d) floating point tensor, got {tuple(updates.shape)} {updates.dtype}")
            return cls(tuple(updates.unbind(0)))
        return cls(tuple(torch.from_numpy(row) if isinstance(row, np.ndarray) else row for row in updates))

    @property
    def n(self) -> int:
        return len(self.vectors)

    @property
    def d(self) -> int:
        return len(self.vectors[0])

    @property
    def dtype(self) -> torch.dtype:
        return self.vectors[0].dtype

    @property
    def device(self) -> torch.device:
        return self.vectors[0].device

    def row(self, index: int) -> Tensor:
        return self.vectors[index]

    def block(self, columns: slice) -> Tensor:
        """``(n, c)``, a copy."""
        return torch.stack([vector[columns] for vector in self.vectors])

    def blocks(self) -> Iterator[slice]:
        width = max(4096, BLOCK_ELEMENTS // max(1, self.n))
        return (slice(start, min(start + width, self.d)) for start in range(0, self.d, width))


def gram(rows: Rows, reference: Tensor | None, points: Sequence[Tensor] = ()) -> FloatArray:
    """``(m, m)`` inner products of rows and points, all minus the reference. Finite."""
    every = Rows((*rows.vectors, *(point.to(rows.dtype) for point in points)))
    products = _products(every, reference, working_dtype(rows.vectors[0]))
    squares = products.diagonal()
    if not np.isfinite(products).all() or ((squares < TINY_NORM**2) & (squares > 0)).any() or (squares == 0).sum() > 1:
        products = _products(every, reference, torch.float64)
    return products


def _products(rows: Rows, reference: Tensor | None, work: torch.dtype) -> FloatArray:
    products = torch.zeros(rows.n, rows.n, dtype=torch.float64)
    for columns in rows.blocks():
        block = rows.block(columns).to(work)
        if reference is not None:
            block -= reference[columns].to(work)
        if work == torch.float64:
            block.clamp_(-HUGE_FACTOR, HUGE_FACTOR)
        products += (block @ block.T).to("cpu", torch.float64)
    return products.numpy()


def weighted_sum(rows: Rows, weights: Sequence[float] | FloatArray) -> Tensor:
    """``(d,)``: the sum of the rows, each times its weight."""
    used = [row for row, weight in enumerate(weights) if weight]
    return mixed(Rows(tuple(rows.vectors[row] for row in used)), np.asarray(weights)[None, used])[0]


def mixed(rows: Rows, matrix: FloatArray) -> Tensor:
    """``(m, d)``: weighted sums of the rows."""
    factors = torch.from_numpy(np.ascontiguousarray(matrix))
    sizes = np.abs(matrix[matrix != 0])
    extreme = bool(len(sizes)) and not (sizes.min() > 1e-30 and sizes.max() < 1e30)
    work = torch.float64 if extreme else working_dtype(rows.vectors[0])
    if not rows.n:
        raise AggregationError("a weighted sum of no row at all")
    factors = factors.to(rows.device, work)
    parts = []
    for columns in rows.blocks():
        block = rows.block(columns).to(work)
        if extreme:
            block.clamp_(-HUGE_FACTOR, HUGE_FACTOR)  # as its distances were taken
        parts.append((factors @ block).to(rows.dtype))
    return torch.cat(parts, dim=1)


def between(
    rows: Rows, low: int, high: int, count_survivors: bool = False, matrix: FloatArray | None = None
) -> tuple[Tensor, FloatArray | None]:
    """Per column the mean of the sorted values low..high (both included), and how often each row is among them."""
    survived, parts = np.zeros(rows.n if matrix is None else len(matrix)), []
    for columns in rows.blocks():
        block = _mixed_block(rows, columns, matrix)
        kept = ranked(block, low, high)
        if count_survivors:
            survived += _survivors(block, kept[0], kept[-1])
        parts.append(average(kept).to(rows.dtype))
    return torch.cat(parts), survived if count_survivors else None


def nearest(
    rows: Rows,
    count: int,
    around: tuple[int, int],
    count_survivors: bool = False,
    matrix: FloatArray | None = None,
) -> tuple[Tensor, FloatArray | None]:
    """Per column the mean of the ``count`` values nearest to the mean of the sorted values around; of two as near the lesser."""
    survived, parts = np.zeros(rows.n if matrix is None else len(matrix)), []
    for columns in rows.blocks():
        block = _mixed_block(rows, columns, matrix)
        n = len(block)
        order = torch.stack(ranked(block, 0, n - 1)).to(working_dtype(block))
        center = average(list(order[around[0] : around[1] + 1]))
        first = torch.zeros(block.shape[1], dtype=torch.int64, device=block.device)
        for start in range(n - count):
            first += order[start + count] - center < center - order[start]
        window = [order.gather(0, (first + at)[None])[0] for at in range(count)]
        if count_survivors:
            survived += _survivors(block, window[0].to(block.dtype), window[-1].to(block.dtype))
        parts.append(average(window).to(rows.dtype))
    return torch.cat(parts), survived if count_survivors else None


def _mixed_block(rows: Rows, columns: slice, matrix: FloatArray | None) -> Tensor:
    block = rows.block(columns)
    if matrix is None:
        return block
    work = working_dtype(block)
    return torch.from_numpy(matrix).to(block.device, work) @ block.to(work)


def _survivors(block: Tensor, low: Tensor, high: Tensor) -> FloatArray:
    """How many of each row's values lie between. As floats: torch adds up booleans five times slower."""
    inside = torch.clamp(block, low, high)
    torch.eq(inside, block, out=inside)
    return np.asarray(inside.sum(dim=1, dtype=torch.float32).to("cpu", torch.float64).numpy())
