"""Interface between the trainer and a stage of a pipeline. gossip-pipelines implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gossip.ipc import messages as control
from gossip.run import SavedStage

NORMS = "gossip.gradient_norms"  # key in the state beside the model


class GradientNorms:
    """Euclidean norms of the gradients of each layer in the last round, before clipping.

    Args:
        model: Layers of a stage, named by their numbers.
    """

    def __init__(self, model: nn.ModuleDict) -> None:
        self._model = model
        self._norms: dict[str, float] = {}

    def measure(self) -> None:
        """Measure the norms, once the layers have their gradients."""
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


class Pipeline(ABC):
    """This peer's stage of a pipeline. Created by ``peer.pipeline``.

    Attributes:
        stage: Number of this peer's stage, from 0.
        stages: Number of stages.
        model: The stage's layers, under their numbers in the whole model: its ``state_dict`` is a
            part of that of ``nn.Sequential`` of all layers.
        optimizer: Optimizer of the stage's parameters. ``step`` steps it.
    """

    stage: int
    stages: int
    model: nn.ModuleDict
    optimizer: torch.optim.Optimizer

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the inputs of a step."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage reads the targets of a step, and computes the loss."""
        return self.stage == self.stages - 1

    @abstractmethod
    def step(self, x: Any, y: Any) -> float | None:
        """Train one step: all micro-batches forward and backward through all stages, then the
        optimizer. All peers call it.

        Args:
            x: Inputs of all samples of the step, the same on every peer: ``(n, ...)``. Only the
                first stage reads them; other stages may pass None.
            y: Their targets, ``(n, ...)``. Only the last stage reads them.
        Returns: The mean loss of the samples for which this peer computed the last stage; None if
            there are none.
        Raises: ConfigError: The number of samples is not the sum of the plan's micro-batches.
        """


class OwnStage(Pipeline):
    """Interface of this peer's stage for its session and the service of its node.

    Attributes:
        norms: Norms of the layers' gradients, a part of the state beside the model.
    """

    norms: GradientNorms

    @property
    @abstractmethod
    def activation_bytes(self) -> tuple[int, int]:
        """Bytes of a micro-batch that are received from the previous stage, and sent to the
        next."""

    @abstractmethod
    def handle(self, message: control.StageMessage, fds: deque[int]) -> None:
        """Handle a message of the node, with its descriptors at the front of ``fds``."""

    @abstractmethod
    def drop_commands(self, round_id: int) -> None:
        """Drop the commands of rounds before ``round_id``."""

    @abstractmethod
    def forget_commands(self) -> None:
        """Drop all commands, because their node is dead."""

    @abstractmethod
    def recut(self, parts: Sequence[SavedStage]) -> tuple[int, bytes, dict[str, Any]]:
        """Load the layers from checkpoints of other stages. Return the next round, its ledger, and
        the state beside the model."""
