"""A layer that takes a given time and computes nothing. It emulates a layer on a device."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn


class TimedLayer(nn.Module):
    """Layer that returns its input after a given time, to emulate a layer on a device of a given
    speed. It only sleeps, so a few processors can emulate many slow devices.

    Args:
        forward_s: Seconds of a forward pass, for a batch of any size.
        forward_each_s: Additional seconds of a forward pass per sample.
        backward: Duration of a backward pass, as a multiple of the forward pass.
        parameters: Number of parameters of the layer. Their gradients are 0.
        speed: Speed of the emulated device; all times are divided by it. The layer's ``repr`` omits
            it, so a profile treats layers of all speeds as equal.
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
        """Return ``inputs``, ``(samples, ...)``, unchanged."""
        seconds = (self.forward_s + self.forward_each_s * len(inputs)) / self.speed
        # torch does not annotate ``apply``.
        outputs: Tensor = _Slept.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, seconds, seconds * self.backward
        )
        return outputs

    def extra_repr(self) -> str:
        """Return the settings of the layer, without the speed of the emulated device."""
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
