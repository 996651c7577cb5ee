"""Computation of one stage of a pipeline on one peer: forward and backward passes of micro-batches,
and the sum of their gradients. It exchanges no messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError, UnsupportedModel
from gossip.topologies import draw
from gossip.training import drawing_from

Loss = Callable[[Tensor, Tensor], Tensor]
"""Loss function. Outputs and targets have one row per sample. The result is a scalar tensor: the
mean over the samples."""
AUDITED = -1
"""Key of the stored pass of an audit, in which this peer repeats a pass of another member."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Tensors that a forward pass stores for the backward pass. In the last stage ``outputs`` is
    the loss."""

    inputs: Tensor
    outputs: Tensor
    samples: int


class StageExecutor:
    """Computes the passes of one stage.

    Backward passes accumulate in ``.grad`` of the layers. The sum over the samples, divided by
    ``samples``, is the gradient of the mean loss of this member. The gradient of the whole batch is
    the mean over all members, weighted by their samples.

    Attributes:
        samples: Number of samples with a backward pass since ``reset``.
        last_loss: Mean loss of the last micro-batch in the last stage; otherwise None.
    """

    def __init__(
        self, layers: Sequence[nn.Module], first: int, seed: int, loss: Loss | None = None
    ) -> None:
        """
        Args:
            layers: Layers of this stage.
            first: Number of the first of these layers in the model.
            seed: Seed of the run. The random numbers of a layer depend on it, on the step, on the
                micro-batch and on the layer.
            loss: Loss function of the last stage; None in all other stages.
        Raises: UnsupportedModel: A layer keeps statistics of its batches.
        """
        for at, layer in enumerate(layers, first):
            check_no_statistics(layer, at)
        self._layers = list(layers)
        self._first = first
        self._seed = seed
        self._loss_of = loss
        self._kept: dict[int, _Waiting] = {}
        self._done: set[int] = set()
        self.samples = 0
        self._loss_sum: Tensor | None = None
        self.last_loss: float | None = None
        self._checked = False

    @property
    def done(self) -> tuple[int, ...]:
        """Micro-batches with a backward pass since ``reset``, ascending."""
        return tuple(sorted(self._done))

    @property
    def loss(self) -> float | None:
        """Mean loss over ``samples`` in the last stage; otherwise None."""
        return None if self._loss_sum is None else float(self._loss_sum) / self.samples

    def forward(
        self,
        step: int,
        micro_batch: int,
        inputs: Tensor,
        targets: Tensor | None = None,
        audit: bool = False,
    ) -> Tensor:
        """Return the input of the next stage or, in the last stage, the loss.

        A second forward pass of the same micro-batch replaces the first one, and uses the same
        random numbers.

        Args:
            inputs: ``(samples, ...)``.
            audit: Whether the pass repeats a pass of another member. It is stored separately, and
                replaces the previous pass with ``audit``.
        Raises: UnsupportedModel: A layer has changed one of its buffers. ConfigError: The loss is
            not a scalar tensor.
        """
        inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
        buffers = {} if self._checked else self._buffers()
        before = {key: buffer.clone() for key, buffer in buffers.items()}
        outputs = inputs
        for at, layer in enumerate(self._layers, self._first):
            with drawing_from(draw("pass", self._seed, step, micro_batch, at), outputs.device):
                outputs = layer(outputs)
        if not self._checked:
            self._check_buffers(before)
        if self._loss_of is not None:
            assert targets is not None
            outputs = self._loss_of(outputs, targets)
            if not isinstance(outputs, Tensor) or outputs.ndim:
                raise ConfigError(
                    "the loss is not a tensor with one number",
                    "loss(outputs, targets) must return the mean over the samples, such as "
                    "nn.functional.cross_entropy",
                )
        self._kept[AUDITED if audit else micro_batch] = _Waiting(inputs, outputs, len(inputs))
        return outputs.detach()

    def audit_backward(self, gradient: Tensor | None = None) -> Tensor | None:
        """Return the gradient of the inputs of the last pass with ``audit``, as ``backward`` does.
        The gradients of the layers do not change."""
        audited = self._kept.pop(AUDITED)
        if not audited.inputs.requires_grad:
            return None
        if self._loss_of is not None:
            gradient = torch.full_like(audited.outputs.detach(), audited.samples)
        (found,) = torch.autograd.grad(audited.outputs, audited.inputs, gradient)
        return found

    def backward(self, micro_batch: int, gradient: Tensor | None = None) -> Tensor | None:
        """Add the gradients of a micro-batch to the layers' gradients.

        Args:
            gradient: Gradient of the result of ``forward``. ``backward`` of the next stage returns
                it; None in the last stage.
        Returns: The gradient of the inputs, multiplied by the number of samples; None if the inputs
            are not floating point numbers.
        """
        kept = self._kept.pop(micro_batch)
        if self._loss_of is not None:
            loss = kept.outputs.detach()
            # With this factor, gradients of micro-batches of different sizes can be added.
            gradient = torch.full_like(loss, kept.samples)
            self.last_loss, summed = float(loss), loss * kept.samples
            self._loss_sum = summed if self._loss_sum is None else self._loss_sum + summed
        assert micro_batch not in self._done
        kept.outputs.backward(gradient)
        self._done.add(micro_batch)
        self.samples += kept.samples
        return kept.inputs.grad

    def drop(self, micro_batch: int) -> None:
        """Delete the stored forward pass of a micro-batch, if there is one."""
        self._kept.pop(micro_batch, None)

    def reset(self) -> None:
        """Delete all stored passes, and set the gradients of the layers to zero."""
        for layer in self._layers:
            layer.zero_grad()
        self._kept.clear()
        self._done.clear()
        self.samples, self._loss_sum = 0, None

    def _buffers(self) -> dict[tuple[int, str], Tensor]:
        return {
            (at, name): buffer
            for at, layer in enumerate(self._layers, self._first)
            for name, buffer in layer.named_buffers()
        }

    def _check_buffers(self, before: dict[tuple[int, str], Tensor]) -> None:
        self._checked = True
        for (at, name), buffer in self._buffers().items():
            if (at, name) in before and not torch.equal(before[at, name], buffer):
                raise _keeps_statistics(f"layer {at} changes its buffer {name} in training")


def check_no_statistics(layer: nn.Module, at: int) -> None:
    """Check that a layer keeps no running statistics of batches.

    Raises: UnsupportedModel: The layer keeps them, as BatchNorm does.
    """
    for name, module in layer.named_modules():
        if getattr(module, "track_running_stats", False):
            where = f"{name} in layer {at}" if name else f"layer {at}"
            raise _keeps_statistics(
                f"{where} is a {type(module).__name__}, which keeps statistics of batches"
            )


def _keeps_statistics(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{what}: in a pipeline each member of a stage has other micro-batches, in another order",
        "use a layer without running statistics, such as GroupNorm or LayerNorm",
    )
