"""One peer's stage of a model that is spread over peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.run import Cut
from gossip.training import Step, Steps
from gossip_pipelines.planning import (
    LayerMaker,
    check_same,
    make_layer,
    outline_of,
    walk_without_data,
)

from .executor import Loss, StageExecutor
from .passes import Boundary, StageWork, boundaries, rows_of
from .rebuilding import MakeOptimizer, StageModel


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
        self.stage = 0
        self._cut: Cut = ((0, len(layers) - 1),)
        self._around: tuple[Boundary | None, Boundary | None] = (None, None)
        outlines = [outline_of(layer, at) for at, layer in enumerate(layers)]
        self._outlines, self._signatures = outlines, [""] * len(layers)
        if plan is not None:
            self.stage, self._cut = plan.stage_of(peer), plan.cut
            walked = walk_without_data(outlines, samples)
            self._signatures = [each.signature for each in walked]
            self._around = boundaries(plan, self.stage, walked)
        self.stages = len(self._cut)
        first, last = self._cut[self.stage]
        for at, layer in enumerate(layers):
            if not first <= at <= last and isinstance(layer, nn.Module):
                layer.to_empty(device="meta")
        self.model = nn.ModuleDict()
        for at in range(first, last + 1):
            self.model[str(at)] = made = make_layer(layers[at], at, config.seed)
            check_same(made, outlines[at], at)

    def known(self, make_optimizer: MakeOptimizer) -> StageModel:
        """Return this stage with the outlines of all others."""
        layers = self._outlines, self._signatures
        return StageModel(self._cut, self.stage, self.model, *layers, make_optimizer)

    def work(self, loss: Loss, steps: Steps) -> StageWork:
        """Return the object that computes the passes of the stage.

        Raises: UnsupportedModel: A layer keeps statistics of batches.
            ConfigError: No layer has a parameter.
        """
        layers, first = list(self.model.values()), self._cut[self.stage][0]
        is_last = self.stage == self.stages - 1
        executor = StageExecutor(layers, first, self._seed, loss if is_last else None)
        parameter = next(self.model.parameters(), None)
        if parameter is None:
            raise ConfigError(
                f"stage {self.stage} has no parameter: its layers are {', '.join(self.model)}",
                "edit the plan, so that it has a layer with parameters",
            )
        return StageWork(executor, parameter.device, *self._around, steps)

    def stepping(self, work: StageWork, run: Callable[[], None]) -> Step:
        """A step of this stage. ``run``: has its passes computed."""
        plan, is_last = self._plan, self.stage == self.stages - 1
        assert plan is not None

        def step(x: Any, y: Any) -> float | None:
            work.inputs = rows_of(x, plan, "inputs") if self.stage == 0 else ()
            work.targets = rows_of(y, plan, "targets") if is_last else ()
            work.loss = None
            run()
            return work.loss

        return step


def stepping_alone(
    work: StageWork, optimizer: torch.optim.Optimizer, number: Callable[[], int]
) -> Step:
    """A step of a peer that has all layers, without a round. ``number``: that of the step."""

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
