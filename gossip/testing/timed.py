"""A layer that takes a stated time and computes nothing."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn


class TimedLayer(nn.Module):
    """Hands its input on after a stated time: it stands for a layer on a device of some speed, so
    that many slow devices can be tested on few processors, as they only sleep.

    Args:
        forward_s: Seconds of a forward pass, for a batch of any size.
        forward_each_s: Seconds that each sample adds.
        backward: How many times as long a backward pass takes.
        parameters: Numbers that it holds and that get gradients, which are 0.
        speed: Of the device that it stands for: times are divided by it. It is the same layer
            whatever its speed.
    """

    def __init__(
        self,
        forward_s: float,
        forward_each_s: float = 0.0,
        *,
        backward: float = 2.0,
        parameters: int = 1,
        speed: float = 1.0,
    ) -> None:
        super().__init__()
        self.forward_s, self.forward_each_s = forward_s, forward_each_s
        self.backward, self.speed = backward, speed
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, inputs: Tensor) -> Tensor:
        """``inputs`` as they are, the number of samples first."""
        seconds = (self.forward_s + self.forward_each_s * len(inputs)) / self.speed
        # torch does not say what types it takes and returns
        handed_on: Tensor = _Slept.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, seconds, seconds * self.backward
        )
        return handed_on

    def extra_repr(self) -> str:
        """Return the settings of the layer, without the speed of the device that it stands for."""
        return (
            f"forward_s={self.forward_s}, forward_each_s={self.forward_each_s}, "
            f"backward={self.backward}, parameters={len(self.weight)}"
        )


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, inputs: Tensor, weight: Tensor, forward_s: float, backward_s: float
    ) -> Tensor:
        context.backward_s = backward_s
        context.save_for_backward(weight)
        time.sleep(forward_s)
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (weight,) = context.saved_tensors
        time.sleep(context.backward_s)
        return gradients[0], torch.zeros_like(weight), None, None
