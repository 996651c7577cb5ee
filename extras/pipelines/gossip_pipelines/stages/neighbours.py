"""Reconstruction of a lost layer from layers of the neighbouring stages.

Source: CheckFree (Blagoev et al. 2025, arXiv:2506.15461). A lost layer is the mean of its
counterparts in the stages before and after it, weighted by their gradient norms. Here the norms are
those before clipping, and the state of the optimizer is averaged in the same way.
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
    """State of one layer on a member of its stage.

    Attributes:
        tensors: Parameters and buffers, by name.
        moments: Entries of the optimizer's state for each parameter, by the name of the parameter.
        norm: Norm of the last gradient of all parameters of the layer, before clipping; 0.0 if
            unknown.
    """

    tensors: Mapping[str, Tensor]
    moments: Mapping[str, Mapping[str, Any]]
    norm: float = 0.0


def counterparts(lost: Sequence[str], beside: Sequence[str]) -> list[int | None]:
    """Return the counterpart of each lost layer in a neighbouring stage.

    Layers with the same signature are matched in order: first with first, second with second. If
    the other stage has fewer layers with that signature, the last of these is the counterpart of
    all remaining layers. If it has no such layer, the counterpart is None.

    Args:
        lost, beside: Signatures of the layers of the two stages, in order.
    """
    turn: Counter[str] = Counter()
    found: list[int | None] = []
    for signature in lost:
        alike = [at for at, other in enumerate(beside) if other == signature]
        found.append(alike[min(turn[signature], len(alike) - 1)] if alike else None)
        turn[signature] += 1
    return found


def between(below: TrainedLayer | None, above: TrainedLayer | None) -> TrainedLayer | None:
    """Return the mean of two layers, weighted by their norms. If both norms are 0, the weights are
    equal. If there is only one layer, it is the result."""
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
    """Return the weighted mean of two values; ``part`` is the weight of the first one. Only
    floating point tensors of the same shape are averaged. For other values, such as a step count,
    the result is the value with the larger weight."""
    pair = isinstance(below, Tensor) and isinstance(above, Tensor)
    if pair and below.is_floating_point() and below.shape == above.shape:
        return torch.lerp(above, below, part)
    return below if part >= 0.5 else above
