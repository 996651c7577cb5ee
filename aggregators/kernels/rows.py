"""Vectors of one length, contiguous or separate in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.errors import AggregationError

CHUNK_ELEMENTS = 2**19  # maximum size of a chunk, so that it and its copies fit in the cache


class Rows:
    """n vectors of d coordinates: an (n, d) tensor, or n separate tensors or arrays.

    Attributes:
        n, d: Number of rows, and their length.
        dtype, device: Dtype and device of all rows.
    """

    __slots__ = ("_apart", "_together", "d", "device", "dtype", "n")

    def __init__(self, together: Tensor | None, apart: tuple[Tensor, ...]) -> None:
        self._together = together
        self._apart = apart
        one = apart[0] if together is None else together
        self.n = len(apart) if together is None else len(together)
        self.d = one.shape[-1]
        self.dtype = one.dtype
        self.device = one.device

    @classmethod
    def of(cls, updates: Rows | Tensor | Sequence[Tensor | NDArray[Any]] | NDArray[Any]) -> Rows:
        """Return the updates as rows, without a copy.

        Raises: AggregationError: There are no updates, or they differ in shape, dtype or device, or
            are not floating point vectors.
        """
        if isinstance(updates, Rows):
            return updates
        if isinstance(updates, np.ndarray):
            updates = tensor_of(updates)
        if isinstance(updates, Tensor):
            if updates.ndim != 2 or not updates.is_floating_point() or 0 in updates.shape:
                raise AggregationError(
                    "updates must be an (n, d) floating point tensor, or n vectors; got "
                    f"{tuple(updates.shape)} {updates.dtype}"
                )
            check_stored(updates)
            return cls(updates.detach(), ())
        check_listed(updates)
        if not len(updates):
            raise AggregationError("there are no updates to aggregate")
        apart = tuple(
            row.detach() if isinstance(row, Tensor) else tensor_of(np.asarray(row))
            for row in updates
        )
        first = apart[0]
        if first.ndim != 1 or not first.is_floating_point() or not len(first):
            raise AggregationError(
                f"an update must be a floating point vector, got {tuple(first.shape)} {first.dtype}"
            )
        check_stored(first)
        for at, row in enumerate(apart):
            if row.shape != first.shape or row.dtype != first.dtype or row.device != first.device:
                raise AggregationError(
                    f"all updates must have the same type: update 0 is {tuple(first.shape)} "
                    f"{first.dtype} on {first.device}, update {at} is {tuple(row.shape)} "
                    f"{row.dtype} on {row.device}"
                )
            check_stored(row)
        return cls(None, apart)

    def __len__(self) -> int:
        return self.n

    def row(self, at: int) -> Tensor:
        """Return one row ``(d,)``, without a copy."""
        return self._apart[at] if self._together is None else self._together[at]

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """All rows, without a copy."""
        return self._apart if self._together is None else self._together.unbind(0)

    def blocks(self, elements: int = CHUNK_ELEMENTS, parts: int = 1) -> list[slice]:
        """Return slices that divide the columns into chunks of nearly equal width. A chunk has at
        most ``elements`` elements, or 1,024 columns if that is more. No chunk crosses the boundary
        of two of ``parts`` equal parts."""
        part = self.d // parts
        count = -(-part // max(1024, elements // self.n))
        width = -(-part // count)
        return [
            slice(start, min(start + width, end))
            for end in range(part, self.d + 1, part)
            for start in range(end - part, end, width)
        ]

    def block(self, columns: slice = slice(None)) -> Tensor:
        """Return ``(n, c)``: these columns of all rows. If the rows are separate, this is a
        copy."""
        if self._together is not None:
            return self._together[:, columns]
        return torch.stack([row[columns] for row in self._apart])

    def put(self, columns: slice, center: Tensor | None, into: Tensor) -> None:
        """Write these columns of all rows, minus ``center`` ``(c,)``, into the first n rows of
        ``into``, in its dtype."""
        parts = [self._together] if self._together is not None else self._apart
        places = [into[: self.n]] if self._together is not None else into[: self.n].unbind(0)
        for part, place in zip(parts, places, strict=True):
            piece = part[..., columns]
            if center is None:
                place.copy_(piece)
            else:
                torch.sub(
                    piece if piece.dtype == into.dtype else piece.to(into.dtype), center, out=place
                )

    def chosen(self, rows: Sequence[int]) -> Rows:
        """Return some of the rows, without a copy."""
        return Rows(None, tuple(self.row(at) for at in rows))

    def replaced(self, others: Mapping[int, Tensor]) -> Rows:
        """Return the rows after replacing some of them; the key of ``others`` is the row's
        index."""
        return Rows(None, tuple(others.get(at, row) for at, row in enumerate(self.vectors)))

    def followed_by(self, more: Sequence[Tensor]) -> Rows:
        """Return these rows, followed by ``more`` in the dtype and on the device of the rows."""
        return Rows(
            None, (*self.vectors, *(row.detach().to(self.device, self.dtype) for row in more))
        )

    def addresses(self) -> NDArray[np.int64] | None:
        """Return the address of each row in memory, or None unless all rows are contiguous float32
        on the CPU."""
        if self.dtype != torch.float32 or self.device.type != "cpu":
            return None
        if self._together is not None:
            if self._together.stride(1) != 1 and self.d > 1:
                return None
            first, step = self._together.data_ptr(), 4 * self._together.stride(0)
            return first + step * np.arange(self.n, dtype=np.int64)
        if any(row.stride(0) != 1 for row in self._apart) and self.d > 1:
            return None
        return np.array([row.data_ptr() for row in self._apart], dtype=np.int64)


def check_listed(updates: object) -> None:
    """Check that updates are a tensor, an array or a sequence. Raises AggregationError."""
    if not isinstance(updates, Sequence | Tensor | np.ndarray | Rows):
        raise AggregationError(
            "updates must be an (n, d) tensor or array, or a list of vectors, got "
            f"{type(updates).__name__}"
        )


def check_stored(tensor: Tensor, what: str = "updates") -> None:
    """Check that a tensor is dense, has data in memory, and has a dtype for which torch supports
    arithmetic. Raises AggregationError."""
    if tensor.layout != torch.strided:
        raise AggregationError(
            f"{what} must be dense vectors, got {tensor.layout}", "convert them with .to_dense()"
        )
    if tensor.is_meta:
        raise AggregationError(f"{what} on the device 'meta' have no data")
    if tensor.itemsize == 1:
        raise AggregationError(
            f"{what} of {tensor.dtype} do not support arithmetic",
            "convert them with .float()",
        )


class _Lent:
    """View of an array without its read-only flag, because torch would warn about the flag. The
    memory is never written."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array. The array may be read-only."""
    if array.dtype.kind != "f":
        raise AggregationError(f"updates must be floating point, got an array of {array.dtype}")
    if (
        not array.dtype.isnative
        or array.dtype.itemsize > 8
        or any(stride < 0 for stride in array.strides)
    ):
        # Torch does not support such arrays.
        array = array.astype(
            np.float64 if array.dtype.itemsize > 4 else array.dtype.newbyteorder("=")
        )
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Lent(array)))
