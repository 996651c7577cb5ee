"""Interface between the trainer and a stage of a pipeline. The package gossip-pipelines implements
it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gossip.ipc import messages as control
from gossip.run import SavedStage

NORMS = "gossip.gradient_norms"  # key in the state of ``ExtraState``


class GradientNorms:
    """Euclidean norm of each layer's gradients in the last round, before clipping.

    Args:
        model: Layers of a stage; the key is the layer's number.
    """

    def __init__(self, model: nn.ModuleDict) -> None:
        self._model = model
        self._norms: dict[str, float] = {}

    def measure(self) -> None:
        """Compute the norms of the layers' present gradients."""
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
        model: Layers of this stage. The key is a layer's number in the whole model, so the names in
            the ``state_dict`` are those of an ``nn.Sequential`` of all layers.
        optimizer: Optimizer of the stage's parameters. ``Pipeline.step`` steps it.
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
        """Make one training step: forward and backward passes of all micro-batches through all
        stages, then the optimizer step. All peers call it.

        Args:
            x: Inputs of all samples of the step, the same on every peer: ``(n, ...)``. Only the
                first stage reads them; other stages may pass None.
            y: Targets of these samples, ``(n, ...)``. Only the last stage reads them.
        Returns: Mean loss of the samples for which this peer computed the last stage; None if there
            are no such samples.
        Raises: ConfigError: The number of samples differs from that of all micro-batches in the
            plan.
        """


class OwnStage(Pipeline):
    """Stage of this peer, as its session and its ``NodeService`` use it.

    Attributes:
        norms: Norms of the layers' gradients. They are part of the extra state.
    """

    norms: GradientNorms

    @property
    @abstractmethod
    def activation_bytes(self) -> tuple[int, int]:
        """Number of bytes of a micro-batch that this stage receives from the previous stage, and
        that it sends to the next stage."""

    @abstractmethod
    def handle(self, message: control.StageMessage, fds: deque[int]) -> None:
        """Handle a message of the node. The file descriptors of the message are at the front of
        ``fds``."""

    @abstractmethod
    def drop_commands(self, round_id: int) -> None:
        """Drop the commands of rounds before ``round_id``."""

    @abstractmethod
    def forget_commands(self) -> None:
        """Drop all commands, because the node that sent them is dead."""

    @abstractmethod
    def recut(self, parts: Sequence[SavedStage]) -> tuple[int, bytes, dict[str, Any]]:
        """Load this stage's layers from checkpoints of other stages. Return the next round, the
        ledger, and the extra state."""
