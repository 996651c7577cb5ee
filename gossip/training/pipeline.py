"""``peer.pipeline``: one peer's stage of a model that is spread over peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.pipelines import (
    LayerMaker,
    Loss,
    StageExecutor,
    check_same,
    make_layer,
    outline_of,
    walk_without_data,
)

from .passes import Boundary, StageWork, boundaries, rows_of
from .rebuilding import MakeOptimizer, StageModel


class Pipeline:
    """This peer's stage of a pipeline. ``peer.pipeline`` makes it.

    Attributes:
        stage: The number of this peer's stage, from 0.
        stages: How many there are.
        model: The stage's layers, under their numbers in the whole model: its ``state_dict`` is a
            part of that of ``nn.Sequential`` of all layers.
        optimizer: Of the stage's parameters. ``step`` steps it.
    """

    def __init__(
        self,
        place: StagePlace,
        optimizer: torch.optim.Optimizer,
        step: Callable[[Any, Any], float | None],
    ) -> None:
        """Use ``peer.pipeline``."""
        self.stage, self.stages = place.stage, place.stages
        self.model, self.optimizer = place.model, optimizer
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
        """Trains one step: all micro-batches forward and backward through all stages, then the
        optimizer. All peers call it.

        Args:
            x: The inputs of all samples of the step, the same on every peer: ``(n, ...)``. Only
                the first stage looks at them; None will do elsewhere.
            y: Their targets, ``(n, ...)``. Only the last stage looks at them.
        Returns: The mean loss of the samples whose last stage this peer was. None: it was that of
            none.
        Raises: ConfigError: The samples are not as many as the plan's micro-batches together.
        """
        return self._step(x, y)


class StagePlace:
    """This peer's stage, made from the layers of the whole model.

    Built layers of other stages lose their parameters. Layers of other stages that were given as
    functions get no memory.

    Attributes:
        model: The layers of its stage.
    """

    def __init__(
        self,
        config: RunConfig,
        peer: int,
        layers: Sequence[nn.Module | LayerMaker],
        samples: Tensor,
    ) -> None:
        """
        Args:
            config: Of the run. Without a plan one stage has all layers.
        Raises: ConfigError: The plan is for other layers, or a function does not make its layer.
        """
        plan = config.pipeline
        self._plan, self._seed = plan, config.seed
        self.stage, self.stages = 0, 1
        first, last = 0, len(layers) - 1
        self._around: tuple[Boundary | None, Boundary | None] = (None, None)
        outlines = [outline_of(layer, at) for at, layer in enumerate(layers)]
        self._outlines, self._signatures = outlines, [""] * len(layers)
        if plan is not None:
            self.stage, self.stages = plan.stage_of(peer), len(plan.stages)
            walked = walk_without_data(outlines, samples)
            self._signatures = [each.signature for each in walked]
            self._around = boundaries(plan, self.stage, walked)
            first, last = plan.stages[self.stage].layers
        for at, layer in enumerate(layers):
            if not first <= at <= last and isinstance(layer, nn.Module):
                layer.to_empty(device="meta")
        self.model = nn.ModuleDict()
        for at in range(first, last + 1):
            self.model[str(at)] = made = make_layer(layers[at], at, config.seed)
            check_same(made, outlines[at], at)
        self._first = first

    def known(self, make_optimizer: MakeOptimizer) -> StageModel | None:
        """Return this stage with the outlines of all others; None: the run has no plan."""
        if self._plan is None:
            return None
        layers = self._outlines, self._signatures
        return StageModel(self._plan, self.stage, self.model, *layers, make_optimizer)

    def work(self, loss: Loss) -> StageWork:
        """Return the object that computes the passes of the stage.

        Raises: UnsupportedModel: A layer keeps statistics of batches.
            ConfigError: No layer has a parameter.
        """
        layers = list(self.model.values())
        is_last = self.stage == self.stages - 1
        executor = StageExecutor(layers, self._first, self._seed, loss if is_last else None)
        parameter = next(self.model.parameters(), None)
        if parameter is None:
            raise ConfigError(
                f"stage {self.stage} has no parameter: its layers are {', '.join(self.model)}",
                "edit the plan, so that it has a layer with parameters",
            )
        return StageWork(executor, parameter.device, *self._around)

    def stepping(
        self, work: StageWork, run: Callable[[StageWork], None]
    ) -> Callable[[Any, Any], float | None]:
        """A step of this stage. ``run``: has its passes computed."""
        plan, is_last = self._plan, self.stage == self.stages - 1
        assert plan is not None

        def step(x: Any, y: Any) -> float | None:
            work.inputs = rows_of(x, plan, "inputs") if self.stage == 0 else ()
            work.targets = rows_of(y, plan, "targets") if is_last else ()
            work.loss = None
            run(work)
            return work.loss

        return step


def stepping_alone(
    work: StageWork, optimizer: torch.optim.Optimizer, number: Callable[[], int]
) -> Callable[[Any, Any], float | None]:
    """A step of a peer that has all layers. ``number``: that of the step."""

    def step(x: Any, y: Any) -> float | None:
        executor = work.executor
        executor.reset()
        executor.forward(number(), 0, x.to(work.device), y.to(work.device))
        executor.backward(0)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= executor.samples
        optimizer.step()
        return executor.loss

    return step
