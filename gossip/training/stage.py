"""The trainer's interface to a stage of a pipeline, which gossip-pipelines implements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from gossip.ipc import messages as control
from gossip.run import SavedStage

NORMS = "gossip.gradient_norms"  # key in the state beside the model
MakeStep: TypeAlias = Callable[[Callable[[], None]], None]
"""Function that makes a step of the script, with a function that takes part in its round."""


class StageNorms(Protocol):
    """Norms of the gradients of the last round, which are part of the state beside the model."""

    def measure(self) -> None:
        """Measure the norms, once the layers have their gradients."""

    def state(self) -> dict[str, float]: ...

    def adopt(self, state: object) -> None:
        """Restore the norms from a packed state. Entries that are not norms are skipped."""


class OwnStage(Protocol):
    """This peer's stage of a pipeline.

    Attributes:
        stage: Number of the stage, from 0.
        stages: Number of stages.
        model: Layers of the stage, under their numbers.
        optimizer: Optimizer of their parameters.
    """

    stage: int
    stages: int
    model: nn.ModuleDict
    optimizer: torch.optim.Optimizer
    norms: StageNorms

    @property
    def activation_bytes(self) -> tuple[int, int]:
        """Bytes of a micro-batch: received from the stage before, and sent to the next."""

    def step(self, x: Any, y: Any, make_step: MakeStep) -> float | None:
        """Train a step (``Pipeline.step``)."""

    def handle(self, message: control.StageMessage, fds: deque[int]) -> None:
        """Take a message of the node, and its descriptors from the front of ``fds``."""

    def drop_commands(self, round_id: int) -> None:
        """Drop the commands of rounds before ``round_id``."""

    def forget_commands(self) -> None:
        """Drop all commands: their node is dead."""

    def recut(self, parts: Sequence[SavedStage]) -> tuple[int, bytes, dict[str, Any]]:
        """Load the layers from checkpoints of other stages. Return the next round, its ledger, and
        the state beside the model."""


class Pipeline:
    """This peer's stage of a pipeline. Created by ``peer.pipeline``.

    Attributes:
        stage: Number of this peer's stage, from 0.
        stages: Number of stages.
        model: The stage's layers, under their numbers in the whole model: its ``state_dict`` is a
            part of that of ``nn.Sequential`` of all layers.
        optimizer: Optimizer of the stage's parameters. ``step`` steps it.
    """

    def __init__(self, stage: OwnStage, make_step: MakeStep) -> None:
        """Use ``peer.pipeline``."""
        self.stage, self.stages = stage.stage, stage.stages
        self.model, self.optimizer = stage.model, stage.optimizer
        self._own, self._make_step = stage, make_step

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
        return self._own.step(x, y, self._make_step)
