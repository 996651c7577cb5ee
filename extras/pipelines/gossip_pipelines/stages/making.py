"""Makes this peer's stage for its session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gossip.training import GradientNorms, OwnStage, PeerRun, Step
from gossip_pipelines.planning import LayerMaker, layers_of

from .executor import Loss
from .place import StagePlace, stepping_alone
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
    place = StagePlace(run.config, run.peer, *layers_of((layers, samples), "peer.pipeline"))
    work = place.work(loss, run.hooks)
    optimizer = make_optimizer(place.model.parameters())
    stage = place.known(make_optimizer)

    def stepping(make_step: Callable[[], None]) -> Step:
        if run.config.pipeline is None:
            return stepping_alone(work, optimizer, lambda: run.step)
        return place.stepping(work, make_step)

    return OwnStage(
        place.stage,
        place.stages,
        place.model,
        optimizer,
        work,
        GradientNorms(place.model),
        stepping,
        StageRebuilder(stage, optimizer, run).make,
        lambda parts: load_recut(stage, optimizer, parts, run.model.extra.check),
    )
