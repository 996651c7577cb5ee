"""Computation of the passes that the node of a stage member requests, in the order of the
requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gossip.config import PipelineConfig
from gossip.errors import ConfigError
from gossip.faults import PassResult
from gossip.ipc import allocate, map_bytes, messages as control
from gossip.training import Steps
from gossip_pipelines.planning import HandedOn, model_of

from .executor import StageExecutor


@dataclass(frozen=True, slots=True)
class Boundary:
    """Tensor of a micro-batch between two stages: the output of one is the input of the next.

    Attributes:
        shape: ``(samples, ...)``.
        dtype: Dtype of the computation.
        sent: Dtype of the message between peers.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    sent: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size of the message between peers."""
        return torch.Size(self.shape).numel() * self.sent.itemsize

    def read(self, memory: memoryview, device: torch.device) -> Tensor:
        """Return the tensor that ``memory`` contains. It may share this memory."""
        sent = torch.frombuffer(memory, dtype=self.sent).view(self.shape)
        return sent.to(device, self.dtype)

    def write(self, tensor: Tensor) -> int:
        """Copy the tensor into new memory, and return a file descriptor of this memory. Raises:
        ConfigError: The tensor has another shape."""
        if tuple(tensor.shape) != self.shape:
            raise ConfigError(
                f"the output of a stage has shape {tuple(tensor.shape)}; with the samples of "
                f"peer.pipeline it had {self.shape}",
                "the samples of a step must have the same shape as those of peer.pipeline",
            )
        fd = allocate(self.nbytes)
        memory = torch.frombuffer(map_bytes(fd, self.nbytes), dtype=self.sent)
        memory.view(self.shape).copy_(tensor)
        return fd


@dataclass(slots=True)
class StageWork:
    """The computation of one stage member.

    Attributes:
        taken: Input from the previous stage; None in the first stage.
        handed_on: Output for the next stage; None in the last stage.
        steps: Hooks of the session.
        inputs: Inputs of the micro-batches of this step in the first stage; otherwise empty.
        targets: Targets of the micro-batches of this step in the last stage; otherwise empty.
        loss: Mean loss of the micro-batches of this round that were computed, in the last stage.
    """

    executor: StageExecutor
    device: torch.device
    taken: Boundary | None
    handed_on: Boundary | None
    steps: Steps
    inputs: Sequence[Tensor] = ()
    targets: Sequence[Tensor] = ()
    loss: float | None = None

    @property
    def activation_bytes(self) -> tuple[int, int]:
        """Sizes of the two messages of a micro-batch: from the previous stage, and to the next."""
        taken, handed_on = self.taken, self.handed_on
        return (
            0 if taken is None else taken.nbytes,
            0 if handed_on is None else handed_on.nbytes,
        )

    def begin(self) -> None:
        """Begin a round, or begin the same round again."""
        self.executor.reset()
        self.loss = None

    def run(
        self, command: control.PassCommand, memory: memoryview | None
    ) -> tuple[control.PassReply, int | None]:
        """Compute a pass. Return the reply, and a file descriptor of its tensor. The gradients of a
        pass with ``audit`` are not added to the sum."""
        executor = self.executor
        before = self.executor.samples
        began = time.monotonic()
        boundary, loss = self.handed_on, None
        result: Tensor | None
        if command.backward:
            boundary, gradient = self.taken, self._read(memory, self.handed_on)
            if command.audit:
                result = executor.audit_backward(gradient)
            else:
                result = executor.backward(command.micro_batch, gradient)
                loss, self.loss = executor.last_loss, executor.loss
        else:
            result = self._forward(command, memory)
        self.steps.computed(began)
        reply = control.PassReply(
            command.round_id,
            command.micro_batch,
            command.attempt,
            command.backward,
            0,
            executor.samples - before,
            loss,
            command.audit,
            0 if command.audit else round(1e6 * (time.monotonic() - began)),
        )
        if boundary is None or result is None:
            return reply, None
        about: PassResult = "gradient" if command.backward else "output"
        if command.audit:
            about = "audit"
        result = self.steps.handed_on(about, command.round_id, command.micro_batch, result)
        return replace(reply, nbytes=boundary.nbytes), boundary.write(result)

    def _forward(self, command: control.PassCommand, memory: memoryview | None) -> Tensor:
        number = command.micro_batch
        inputs = self._read(memory, self.taken)
        if inputs is None:
            inputs = self.inputs[number].to(self.device)
        targets = self.targets[number].to(self.device) if self.handed_on is None else None
        return self.executor.forward(command.round_id, number, inputs, targets, command.audit)

    def _read(self, memory: memoryview | None, boundary: Boundary | None) -> Tensor | None:
        if boundary is None:
            return None
        assert memory is not None
        return boundary.read(memory, self.device)


Around: TypeAlias = tuple[Boundary | None, Boundary | None]
"""Input and output of a stage. The first stage has no input, and the last stage has no output."""


def boundaries(plan: PipelineConfig, stage: int, handed_on: Sequence[HandedOn]) -> Around:
    """Return the input and the output of a stage.

    Args:
        handed_on: Outputs of all layers.
    Raises: ConfigError: The plan is for another model, or the output of a stage has a dtype without
        gradients.
    """
    last = plan.stages[-1].layers[1]
    if len(handed_on) != last + 1:
        raise ConfigError(
            f"the plan has the layers 0 to {last}, and peer.pipeline was given {len(handed_on)}",
            "pass the layers that were profiled, or make the plan again",
        )
    if (model := model_of([each.signature for each in handed_on])) != plan.model:
        raise ConfigError(
            f"the plan is for the model {plan.model}, and peer.pipeline was given {model}",
            "pass the layers and samples that were profiled, or profile these: gossip plan profile",
        )
    found: list[Boundary | None] = [None]
    for each in plan.stages[:-1]:
        output = handed_on[each.layers[1]]
        if not output.dtype.is_floating_point:
            raise ConfigError(
                f"layer {each.layers[1]} returns {output.dtype}, which has no gradient",
                "end the stage with another layer",
            )
        as_bf16 = plan.activations == "bf16" and output.dtype.itemsize > 2
        sent = torch.bfloat16 if as_bf16 else output.dtype
        found.append(Boundary((plan.samples, *output.shape), output.dtype, sent))
    found.append(None)
    return found[stage], found[stage + 1]


def rows_of(batch: Any, plan: PipelineConfig, what: str) -> tuple[Tensor, ...]:
    """Split the inputs or the targets of a step into micro-batches. ``what``: name of the batch in
    error messages.

    Raises: ConfigError: ``batch`` is not a tensor, or has another number of rows than the plan.
    """
    rows = plan.micro_batches * plan.samples
    if not isinstance(batch, Tensor) or batch.ndim == 0 or len(batch) != rows:
        raise ConfigError(
            f"the {what} of a step are "
            + (f"{len(batch)} samples" if isinstance(batch, Tensor) and batch.ndim else "no tensor")
            + f", and the plan has steps of {rows}: {plan.micro_batches} micro-batches of "
            f"{plan.samples}",
            "pass the whole batch of a step to pipe.step, the same on every peer",
        )
    return torch.split(batch, plan.samples)
