"""Numpy memory as a torch tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return the memory of an array as a tensor. Memory that numpy protects against writes is
    copied, because torch has no such protection. So a tensor that is written to must be made from a
    writable array."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())
