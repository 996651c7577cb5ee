"""The trainer's interface to a stage of a pipeline, which gossip-pipelines implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import nn

from gossip.ipc import messages as control
from gossip.run import SavedStage

NORMS = "gossip.gradient_norms"  # key in the state beside the model
Step: TypeAlias = Callable[[Any, Any], float | None]
"""Function that trains a step on inputs and targets. Returns the mean loss, if this peer has
computed it."""


@dataclass(frozen=True, slots=True)
class MadeState:
    """Outcome of a rebuild, with the fields of ``StateRebuilt``.

    Attributes:
        extra: State of the parameters beside the optimizer, if there is any.
    """

    source: Literal["", "checkpoint", "neighbours", "fresh"]
    step: int = 0
    fresh: int = 0
    needs: tuple[tuple[int, int], ...] = ()
    extra: Mapping[str, Any] | None = None


class PassExecutor(Protocol):
    """Gradient of the micro-batches that had their backward pass since ``reset``, as a sum over
    their samples."""

    samples: int

    @property
    def done(self) -> tuple[int, ...]:
        """Numbers of these micro-batches, in order."""

    @property
    def loss(self) -> float | None:
        """Mean loss of ``samples``; only in the last stage, else None."""

    def reset(self) -> None: ...

    def drop(self, micro_batch: int) -> None: ...


class StageWork(Protocol):
    """Passes of micro-batches, in the order of the node's requests."""

    @property
    def executor(self) -> PassExecutor: ...

    @property
    def activation_bytes(self) -> tuple[int, int]:
        """Bytes of a micro-batch: received from the stage before, and sent to the next."""

    def begin(self) -> None:
        """Start a round, or restart this one."""

    def run(
        self, command: control.PassCommand, memory: memoryview | None
    ) -> tuple[control.PassReply, int | None]:
        """Compute a pass. Return the reply, and a descriptor of the memory that goes with it."""


class GradientNorms:
    """Euclidean norms of the gradients of the last round, by the number of the layer, before
    anything clips them.

    Args:
        model: The layers of a stage, under their numbers.
    """

    def __init__(self, model: nn.ModuleDict) -> None:
        self._model = model
        self._norms: dict[str, float] = {}

    def measure(self) -> None:
        """Measure the norms. Call it once the layers have their gradients."""
        for number, layer in self._model.items():
            gradients = [each.grad for each in layer.parameters() if each.grad is not None]
            norms = [torch.linalg.vector_norm(each.float()) for each in gradients]
            whole = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
            self._norms[number] = float(whole)

    def state(self) -> dict[str, float]:
        return dict(self._norms)

    def adopt(self, state: object) -> None:
        """Restore the norms from a packed state. Entries that are not norms are skipped."""
        known = state.items() if isinstance(state, dict) else ()
        self._norms = {
            number: value for number, value in known if number in self._model and is_norm(value)
        }


def is_norm(value: object) -> bool:
    return isinstance(value, float) and value >= 0.0


Rebuild: TypeAlias = Callable[[int, Mapping[int, memoryview], bool], MadeState]
"""Function that makes a state to continue with from a round, or returns the inputs that it needs.
It receives the requested packed states of neighbouring stages, and whether no more can be
requested."""


@dataclass(frozen=True, slots=True)
class OwnStage:
    """This peer's stage of a pipeline.

    Attributes:
        stage: Number of the stage, from 0.
        stages: Number of stages.
        model: Layers of the stage, under their numbers.
        optimizer: Optimizer of their parameters.
        stepping: Makes ``Pipeline.step``, of a function that runs a round.
        recut: Loads the layers from checkpoints of other stages. Returns the next round, its
            ledger, and the state beside the model.
    """

    stage: int
    stages: int
    model: nn.ModuleDict
    optimizer: torch.optim.Optimizer
    work: StageWork
    norms: GradientNorms
    stepping: Callable[[Callable[[], None]], Step]
    rebuild: Rebuild
    recut: Callable[[Sequence[SavedStage]], tuple[int, bytes, dict[str, Any]]]


class Pipeline:
    """This peer's stage of a pipeline. Created by ``peer.pipeline``.

    Attributes:
        stage: Number of this peer's stage, from 0.
        stages: Number of stages.
        model: The stage's layers, under their numbers in the whole model: its ``state_dict`` is a
            part of that of ``nn.Sequential`` of all layers.
        optimizer: Optimizer of the stage's parameters. ``step`` steps it.
    """

    def __init__(self, stage: OwnStage, step: Step) -> None:
        """Use ``peer.pipeline``."""
        self.stage, self.stages = stage.stage, stage.stages
        self.model, self.optimizer = stage.model, stage.optimizer
        self._step = step

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the inputs of a step."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage reads the targets of a step, and computes the loss."""
        return self.stage == self.stages - 1

    def step(self, x: Any, y: Any) -> float | None:
        """Train one step: all micro-batches forward and backward through all stages, then the
        optimizer. All peers call it.

        Args:
            x: Inputs of all samples of the step, the same on every peer: ``(n, ...)``. Only the
                first stage reads them; other stages may pass None.
            y: Their targets, ``(n, ...)``. Only the last stage reads them.
        Returns: The mean loss of the samples for which this peer computed the last stage; None if
            there are none.
        Raises: ConfigError: The number of samples is not that of the plan's micro-batches together.
        """
        return self._step(x, y)
