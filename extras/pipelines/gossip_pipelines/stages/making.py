"""Construction of this peer's stage for its session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gossip.training import PeerRun
from gossip_pipelines.planning import LayerMaker, layers_of

from .executor import Loss
from .place import place_stage, work_of
from .rebuilding import MakeOptimizer
from .stage_step import StageStep


def make_stage(
    run: PeerRun,
    given: tuple[Sequence[nn.Module | LayerMaker], Tensor],
    loss: Loss,
    make_optimizer: MakeOptimizer,
    make_step: Callable[[Callable[[], None]], None],
) -> StageStep:
    """Build the stage of this peer for ``Session.pipeline``.

    Args:
        given: All layers of the model, and some samples.
        make_step: Runs a step of the script. Its argument is the function that computes the round.
    Raises: UnsupportedModel, ConfigError: As ``Session.pipeline``.
    """
    config = run.config
    layers, samples = layers_of(given, "peer.pipeline")
    stage, around = place_stage(config, run.peer, layers, samples, make_optimizer)
    work = work_of(stage, around, loss, config.seed, run.hooks)
    return StageStep(run, stage, work, make_optimizer(stage.model.parameters()), make_step)
