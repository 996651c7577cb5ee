"""Input of a coordinate rule. Its methods select values of each coordinate by rank or by
distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.errors import AggregationError

from . import kernels
from .arithmetic import working_dtype
from .kernels import Rows


class Kept(NamedTuple):
    """Aggregate ``(d,)``, with the survivors. ``survived`` is the number of coordinates in which
    each row survived, ``(n,)`` or ``(parts, n)``; None if not requested or not defined."""

    aggregate: Tensor
    survived: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of updates, or of weighted sums of updates. The sums are computed block by block, and
    are never stored as a whole.

    Attributes:
        rows: The updates, followed by points if there are any.
        matrix: ``(n, rows)``, the weights of the rows in each sum; None to use the rows themselves.
        survivors: Number of equal parts of the columns. Survivors are counted in each part; 0 to
            count none.
    """

    rows: Rows
    matrix: NDArray[np.float64] | None = None
    survivors: int = 0

    @property
    def n(self) -> int:
        return self.rows.n if self.matrix is None else len(self.matrix)

    def between(self, low: int, high: int) -> Kept:
        """Sort the values of each coordinate, and return the mean of those with the ranks ``low``
        to ``high`` (both included, the smallest value has rank 0)."""
        return Kept(
            *kernels.between(
                self.rows, low, high, count_survivors=self.survivors, matrix=self.matrix
            )
        )

    def nearest(self, count: int, low: int, high: int) -> Kept:
        """Return the mean of the ``count`` values nearest to ``between(low, high)``, for each
        coordinate. If two values are equally near, the smaller value is used."""
        found = kernels.nearest(
            self.rows, count, around=(low, high), count_survivors=self.survivors, matrix=self.matrix
        )
        return Kept(*found)

    def majority(self) -> Kept:
        """Return the sign of most rows in each coordinate: 1 or -1; 0 for a tie."""
        return Kept(
            *kernels.majority(self.rows, count_survivors=self.survivors, matrix=self.matrix)
        )

    def each(self, function: Callable[[Tensor], Any], name: str) -> Kept:
        """Apply a function ``(n, c) -> (c,)`` to all columns, in blocks that fit in the CPU
        cache."""
        parts = []
        factors = None
        if self.matrix is not None:
            work = working_dtype(self.rows.row(0))
            factors = torch.from_numpy(self.matrix).to(self.rows.device, work)
        for columns in self.rows.blocks():
            block = self.rows.block(columns)
            if factors is not None:
                block = (factors @ block.to(factors.dtype)).to(block.dtype)
            part = function(block)
            part = getattr(part, "aggregate", part)
            if not isinstance(part, Tensor) or part.shape != block.shape[1:]:
                got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise AggregationError(
                    f"rule {name} returned {got}, not a tensor of shape {tuple(block.shape[1:])}"
                )
            parts.append(part)
        return Kept(parts[0] if len(parts) == 1 else torch.cat(parts))
