"""Construction of the stage of this peer in a model that is divided among peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.run import Cut
from gossip.training import PeerRun
from gossip_pipelines.planning import (
    LayerMaker,
    check_same,
    layers_of,
    make_layer,
    outline_of,
    walk_without_data,
)

from .executor import Loss, StageExecutor
from .passes import Around, StageWork, boundaries
from .rebuilding import MakeOptimizer, StageModel
from .stage_step import StageStep


def place_stage(
    config: RunConfig,
    peer: int,
    layers: Sequence[nn.Module | LayerMaker],
    samples: Tensor,
    make_optimizer: MakeOptimizer,
) -> tuple[StageModel, Around]:
    """Build the stage of a peer from the layers of the whole model. Return it with its input and
    its output.

    Layers of other stages need no memory afterwards. If they are modules, they lose their
    parameters. If they were given as functions, they are not built.

    Args:
        config: Settings of the run. Without a plan, one stage has all layers.
    Raises: ConfigError: The plan is for other layers, or the function of a layer builds another
        layer than before.
    """
    plan, stage = config.pipeline, 0
    cut: Cut = ((0, len(layers) - 1),)
    around: Around = (None, None)
    outlines = [outline_of(layer, at) for at, layer in enumerate(layers)]
    signatures = [""] * len(layers)
    if plan is not None:
        stage, cut = plan.stage_of(peer), plan.cut
        walked = walk_without_data(outlines, samples)
        signatures = [each.signature for each in walked]
        around = boundaries(plan, stage, walked)
    first, last = cut[stage]
    for at, layer in enumerate(layers):
        if not first <= at <= last and isinstance(layer, nn.Module):
            layer.to_empty(device="meta")
    model = nn.ModuleDict()
    for at in range(first, last + 1):
        model[str(at)] = made = make_layer(layers[at], at, config.seed)
        check_same(made, outlines[at], at)
    return StageModel(cut, stage, model, outlines, signatures, make_optimizer), around


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
    Raises: UnsupportedModel: A layer keeps statistics of batches. ConfigError: No layer of the
        stage has a parameter, or as ``place_stage``.
    """
    layers, samples = layers_of(given, "peer.pipeline")
    stage, around = place_stage(run.config, run.peer, layers, samples, make_optimizer)
    parameters = list(stage.model.parameters())
    first, _ = stage.cut[stage.stage]
    executor = StageExecutor(
        list(stage.model.values()), first, run.config.seed, loss if stage.is_last else None
    )
    if not parameters:
        raise ConfigError(
            f"stage {stage.stage} has no parameter: its layers are {', '.join(stage.model)}",
            "edit the plan, so that the stage has a layer with parameters",
        )
    work = StageWork(executor, parameters[0].device, *around, run.hooks)
    return StageStep(run, stage, work, make_optimizer(stage.model.parameters()), make_step)
