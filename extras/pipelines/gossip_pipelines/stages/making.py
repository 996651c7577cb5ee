"""Construction of this peer's stage for its session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gossip.training import GradientNorms, OwnStage, PeerRun, Step
from gossip_pipelines.planning import LayerMaker, layers_of

from .executor import Loss
from .place import place_stage, stepping_alone, stepping_in_stage, work_of
from .rebuilding import MakeOptimizer, StageRebuilder
from .recutting import load_recut


def make_stage(
    run: PeerRun,
    layers: Sequence[nn.Module | LayerMaker],
    samples: Tensor,
    loss: Loss,
    make_optimizer: MakeOptimizer,
) -> OwnStage:
    """Make this peer's stage of a model (``Session.pipeline``).

    Raises: UnsupportedModel, ConfigError: As ``Session.pipeline``.
    """
    config = run.config
    layers, samples = layers_of((layers, samples), "peer.pipeline")
    stage, around = place_stage(config, run.peer, layers, samples, make_optimizer)
    work = work_of(stage, around, loss, config.seed, run.hooks)
    optimizer = make_optimizer(stage.model.parameters())

    def stepping(make_step: Callable[[], None]) -> Step:
        if config.pipeline is None:
            return stepping_alone(work, optimizer, lambda: run.step)
        return stepping_in_stage(stage, config.pipeline, work, make_step)

    return OwnStage(
        stage.stage,
        len(stage.cut),
        stage.model,
        optimizer,
        work,
        GradientNorms(stage.model),
        stepping,
        StageRebuilder(stage, optimizer, run).make,
        lambda parts: load_recut(stage, optimizer, parts, run.model.extra.check),
    )
