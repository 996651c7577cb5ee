"""Numpy memory as torch sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return the same memory as a tensor. Memory that numpy guards against writes is copied, which
    torch knows no guard for: so a tensor that is to be written needs an array that may be."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())
