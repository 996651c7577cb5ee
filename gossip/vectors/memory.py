"""Numpy memory as a torch tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return the same memory as a tensor. Memory that numpy guards against writes is copied,
    because torch has no guard: so a tensor for writing needs a writable array."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())
