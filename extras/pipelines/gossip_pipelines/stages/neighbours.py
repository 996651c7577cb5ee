"""A layer that nobody has any more, made of the layers beside it.

Source: CheckFree (Blagoev et al. 2025, arXiv:2506.15461): the weighted mean of the layers in the
stages before and behind, where those with the larger gradient count more. Here the gradients' norms
are those before any clipping, and what the optimizer keeps is averaged in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrainedLayer:
    """State of one layer at a member of its stage.

    Attributes:
        tensors: Parameters and buffers by name.
        moments: State of the optimizer, by the name of the parameter and its own.
        norm: Norm of the last gradient of all its parameters, before clipping; 0.0: not known.
    """

    tensors: Mapping[str, Tensor]
    moments: Mapping[str, Mapping[str, Any]]
    norm: float = 0.0


def counterparts(lost: Sequence[str], beside: Sequence[str]) -> list[int | None]:
    """For each lost layer the layer of a stage beside that stands in its place there: of those with
    its signature the first for the first, the second for the second, and the last for all that
    follow. None: that stage has no such layer.

    Args:
        lost, beside: The signatures of the layers of a stage, in order.
    """
    turn: Counter[str] = Counter()
    found: list[int | None] = []
    for signature in lost:
        alike = [at for at, other in enumerate(beside) if other == signature]
        found.append(alike[min(turn[signature], len(alike) - 1)] if alike else None)
        turn[signature] += 1
    return found


def between(below: TrainedLayer | None, above: TrainedLayer | None) -> TrainedLayer | None:
    """The mean of the two, weighted by their norms; equal parts where neither has one. Where there
    is one only: that one."""
    if below is None or above is None:
        return below or above
    whole = below.norm + above.norm
    part = below.norm / whole if whole > 0.0 else 0.5
    return TrainedLayer(
        {name: _mean(each, above.tensors[name], part) for name, each in below.tensors.items()},
        {
            name: {
                key: _mean(value, above.moments[name][key], part)
                for key, value in moments.items()
                if key in above.moments[name]
            }
            for name, moments in below.moments.items()
            if name in above.moments
        },
        part * below.norm + (1.0 - part) * above.norm,
    )


def _mean(below: Any, above: Any, part: float) -> Any:
    """``part`` of the first, the rest of the second. Where they are no floating point tensors of
    one shape, as a count of steps is none, that of the larger part."""
    pair = isinstance(below, Tensor) and isinstance(above, Tensor)
    if pair and below.is_floating_point() and below.shape == above.shape:
        return torch.lerp(above, below, part)
    return below if part >= 0.5 else above
