"""Plans of pipelines in small TOML files that users can edit, and the checks of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from gossip.config import Activations
from gossip.errors import ConfigError, suggest_name

from .costs import Costs, StageCosts, TrainingStep
from .exact import cut_at
from .files import CHECKED, PeerName, Seconds, as_toml, read_file
from .placement import Groups, Placement
from .profile import LAYERS_MAX, PEERS_MAX, Count, Signature

SCHEMA = "gossip.plan/1"
COMMENTS = {
    "model": "of the profiles that it was made from",
    "micro_batches": "of a step",
    "samples": "of a micro-batch",
    "members_least": "peers that each stage needs",
    "activations": 'what stages send: "exact" or "bf16"',
    "layers": "from and to, both included",
    "pass_s": "a micro-batch on each; leave out where you change layers",
}
GIB = 2**30
LayerNumber = Annotated[int, Field(strict=True, ge=0, lt=LAYERS_MAX)]
MemberCount = Annotated[int, Field(strict=True, ge=1, le=PEERS_MAX)]


@dataclass(frozen=True, slots=True, config=CHECKED)
class PlannedStage:
    """Layers and peers of a stage.

    Attributes:
        layers: First and last layer.
        pass_s: Time of a micro-batch on each peer, forward and backward, in seconds; empty if it is
            unknown.
    """

    layers: tuple[LayerNumber, LayerNumber]
    peers: Annotated[tuple[PeerName, ...], Field(min_length=1, max_length=PEERS_MAX)]
    pass_s: tuple[Seconds, ...] = ()

    @model_validator(mode="after")
    def _is_complete(self) -> PlannedStage:
        if self.layers[0] > self.layers[1]:
            raise ValueError("layers = [FROM, TO], both included")
        if len(self.pass_s) not in (0, len(self.peers)):
            raise ValueError("pass_s has a number for each of the peers")
        return self


@dataclass(frozen=True, slots=True, config=CHECKED)
class PipelinePlan:
    """Assignment of layers to peers, and the micro-batches of a step.

    Attributes:
        model: Hash of the layers that the plan is for, as in ``PeerProfile``.
        micro_batches: Number of micro-batches of a step.
        samples: Number of samples of a micro-batch.
        members_least: Smallest number of peers of a stage.
        predicted_step_s: Time of a step that was predicted when the plan was made, in seconds.
        activations: As in ``PipelineConfig``.
    """

    model: Signature
    micro_batches: Count
    samples: Count
    members_least: MemberCount
    predicted_step_s: Annotated[float, Field(strict=True, ge=0)]
    stage: Annotated[tuple[PlannedStage, ...], Field(min_length=1, max_length=PEERS_MAX)]
    activations: Activations = "exact"


def plan_of(placement: Placement, step_s: float) -> PipelinePlan:
    costs, work = placement.stage_costs.costs, placement.stage_costs.work
    bounds = placement.cut.bounds
    seconds = costs.seconds(work.samples).sum(axis=0)
    stages = tuple(
        PlannedStage(
            (begin, end - 1),
            tuple(costs.peers[peer] for peer in group),
            tuple(round(float(seconds[peer, begin:end].sum()), 6) for peer in group),
        )
        for group, begin, end in zip(placement.groups, bounds, bounds[1:], strict=False)
    )
    return PipelinePlan(
        costs.model,
        work.micro_batches,
        work.samples,
        work.members_least,
        round(step_s, 6),
        stages,
        work.activations,
    )


def write_plan(plan: PipelinePlan) -> str:
    """Return the plan as TOML text for ``read_plan``."""
    return as_toml(plan, SCHEMA, COMMENTS)


def read_plan(path: Path) -> PipelinePlan:
    """Read a plan from a file.

    Raises: ConfigError: The file is not a plan, or a value is invalid.
    """
    return read_file(path, PipelinePlan, SCHEMA, "gossip plan PROFILE... makes a plan of profiles")


def check_stages(plan: PipelinePlan) -> list[int]:
    """Check the layers and the peers of the stages.

    Returns: The first layer of each stage, followed by the number of layers.

    Raises: ConfigError: A layer is missing, a layer or a peer is in two stages, or a stage has too
        few peers.
    """
    bounds, seen = [0], set[str]()
    for number, stage in enumerate(plan.stage):
        first, last = stage.layers
        if first != bounds[-1]:
            raise ConfigError(
                f"stage {number} begins with layer {first}, but layer {bounds[-1]} is next",
                "each layer belongs to one stage, and stages are in the order of their layers",
            )
        bounds.append(last + 1)
        for peer in stage.peers:
            if peer in seen:
                raise ConfigError(f"the peer {peer} is in the plan twice", "a peer has one stage")
            seen.add(peer)
        if len(stage.peers) < plan.members_least:
            raise ConfigError(
                f"stage {number} has {len(stage.peers)} of the {plan.members_least} peers that "
                "members_least requires",
                "add peers to the stage, or lower members_least",
            )
    return bounds


def check_plan(plan: PipelinePlan, costs: Costs) -> Placement:
    """Check a plan for these peers. Return its placement.

    Raises: ConfigError: The plan is for another model or for other peers, lacks a layer, has too
        few peers in a stage, or needs more memory than a peer has.
    """
    if plan.model != costs.model:
        raise ConfigError(
            f"the plan is for the model {plan.model}, the profiles are of {costs.model}",
            "make the plan again from these profiles: gossip plan PROFILE...",
        )
    groups = _groups(plan, costs)
    bounds = check_stages(plan)
    if bounds[-1] != len(costs.layers):
        raise ConfigError(
            f"the stages have {bounds[-1]} layers together, the model {len(costs.layers)}",
            f"the last stage ends with layer {len(costs.layers) - 1}",
        )
    work = TrainingStep(
        plan.micro_batches,
        plan.samples,
        plan.members_least,
        activations=plan.activations,
    )
    stage_costs = StageCosts(costs, work)
    _check_memory(stage_costs, groups, bounds)
    cut = cut_at(stage_costs.tables(groups), tuple(bounds))
    return Placement(stage_costs, groups, cut)


def _groups(plan: PipelinePlan, costs: Costs) -> Groups:
    groups = []
    for number, stage in enumerate(plan.stage):
        for peer in stage.peers:
            if peer not in costs.peers:
                raise ConfigError(
                    f"stage {number} has the peer {peer}, of which there is no profile"
                    f"{suggest_name(peer, costs.peers)}",
                    f"there are profiles of {', '.join(costs.peers)}",
                )
        groups.append(tuple(sorted(costs.peers.index(peer) for peer in stage.peers)))
    return tuple(groups)


def _check_memory(stage_costs: StageCosts, groups: Groups, bounds: list[int]) -> None:
    for stage, group in enumerate(groups):
        in_flight = stage_costs.in_flight(groups, stage)
        need = stage_costs.memory_bytes(group, in_flight)[bounds[stage + 1], bounds[stage]]
        for peer in group:
            have = stage_costs.costs.memory_bytes[peer]
            if need > have:
                raise ConfigError(
                    f"stage {stage} needs {need / GIB:.2f} GiB of each of its peers, and "
                    f"{stage_costs.costs.peers[peer]} has {have / GIB:.2f} GiB",
                    "move layers to other stages, or use other peers",
                )
