"""Conversion of numpy arrays to torch tensors without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a tensor over the memory of an array. A read-only array is copied, because torch has
    no read-only tensors. So writes to the tensor reach the array only if the array is writable."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())
