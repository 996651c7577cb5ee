"""Computes one stage of a pipeline on one peer: forward and backward passes of micro-batches, and
the gradient of all of them. It knows of no other peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossip.errors import ConfigError, UnsupportedModel
from gossip.topologies import draw
from gossip.training import drawing_from

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of outputs and targets, each with a row for each sample: the mean over these samples,
without dimensions."""
AUDITED = -1
"""Number under which the pass of another member's micro-batch is kept."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Tensors of a forward pass that its backward pass needs. ``outputs`` of the last stage are the
    loss."""

    inputs: Tensor
    outputs: Tensor
    samples: int


class StageExecutor:
    """The layers of one stage.

    Backward passes add up in the layers' ``.grad``: the sum over samples of the gradients of their
    losses. Divided by ``samples`` it is the gradient of the mean loss, so members of a group that
    each count for as many samples as they had make up the gradient of the whole batch.

    Attributes:
        samples: Of the micro-batches that had their backward pass since ``reset``.
        last_loss: The mean loss of the last of these; only in the last stage, else None.
    """

    def __init__(
        self, layers: Sequence[nn.Module], first: int, seed: int, loss: Loss | None = None
    ) -> None:
        """
        Args:
            layers: Of this stage.
            first: The number of the first of them in the model.
            seed: Of the run: with step, micro-batch and layer it decides what layers draw.
            loss: In the last stage.
        Raises: UnsupportedModel: A layer keeps statistics of the batches that it sees.
        """
        for at, layer in enumerate(layers, first):
            check_no_statistics(layer, at)
        self._layers, self._first, self._seed, self._loss_of = list(layers), first, seed, loss
        self._kept: dict[int, _Waiting] = {}
        self._done: set[int] = set()
        self.samples = 0
        self._loss_sum: Tensor | None = None
        self.last_loss: float | None = None
        self._checked = False

    @property
    def done(self) -> tuple[int, ...]:
        """Micro-batches that had their backward pass since ``reset``, in order."""
        return tuple(sorted(self._done))

    @property
    def loss(self) -> float | None:
        """The mean loss of ``samples``; only in the last stage, else None."""
        return None if self._loss_sum is None else float(self._loss_sum) / self.samples

    def forward(
        self,
        step: int,
        micro_batch: int,
        inputs: Tensor,
        targets: Tensor | None = None,
        audit: bool = False,
    ) -> Tensor:
        """Return the input of the next stage; in the last stage the loss of ``targets``.

        A micro-batch may have a second forward pass: it draws the same, and replaces what was kept.

        Args:
            inputs: ``(samples, ...)``.
            audit: Another member has computed it. The pass is kept beside all others, in place of
                the last audited one.
        Raises: UnsupportedModel: A layer has changed one of its buffers. ConfigError: The loss is
            no mean over samples.
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
                    "the loss is no tensor with one number",
                    "loss(outputs, targets) returns the mean over the samples, such as "
                    "nn.functional.cross_entropy",
                )
        self._kept[AUDITED if audit else micro_batch] = _Waiting(inputs, outputs, len(inputs))
        return outputs.detach()

    def audit_backward(self, gradient: Tensor | None = None) -> Tensor | None:
        """The gradient of the inputs of the last audited pass, as ``backward`` returns it.
        Nothing is added to the layers' gradients."""
        audited = self._kept.pop(AUDITED)
        if not audited.inputs.requires_grad:
            return None
        if self._loss_of is not None:
            gradient = torch.full_like(audited.outputs.detach(), audited.samples)
        (found,) = torch.autograd.grad(audited.outputs, audited.inputs, gradient)
        return found

    def backward(self, micro_batch: int, gradient: Tensor | None = None) -> Tensor | None:
        """Adds to the layers' gradients.

        Args:
            gradient: Of what ``forward`` returned, as the next stage's ``backward`` returned it;
                None in the last stage.
        Returns: the gradient of the inputs, times the number of samples; None where they are no
            floating point numbers.
        """
        kept = self._kept.pop(micro_batch)
        if self._loss_of is not None:
            loss = kept.outputs.detach()
            # times the samples: gradients of micro-batches of any size then only add up
            gradient = torch.full_like(loss, kept.samples)
            self.last_loss, summed = float(loss), loss * kept.samples
            self._loss_sum = summed if self._loss_sum is None else self._loss_sum + summed
        assert micro_batch not in self._done
        kept.outputs.backward(gradient)
        self._done.add(micro_batch)
        self.samples += kept.samples
        return kept.inputs.grad

    def drop(self, micro_batch: int) -> None:
        """Forgets the forward pass of one, if there is one."""
        self._kept.pop(micro_batch, None)

    def reset(self) -> None:
        """Forgets all passes, and the gradients in the layers."""
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
    """Raises UnsupportedModel: It is a layer such as BatchNorm."""
    for name, module in layer.named_modules():
        if getattr(module, "track_running_stats", False):
            where = f"{name} in layer {at}" if name else f"layer {at}"
            raise _keeps_statistics(
                f"{where} is a {type(module).__name__}, which keeps statistics of batches"
            )


def _keeps_statistics(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{what}: in a pipeline each member of a stage sees other micro-batches, in another order",
        "use a layer without running statistics, such as GroupNorm or LayerNorm",
    )
