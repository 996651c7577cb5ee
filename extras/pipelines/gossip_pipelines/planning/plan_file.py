"""A plan as a small TOML file that a person can read and edit, and what is checked of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gossip.config import Activations
from gossip.errors import ConfigError, suggest_name
from gossip.run import shown

from .costs import Costs, StageCosts, TrainingStep
from .exact import cut_at
from .placement import Groups, Placement
from .profile import BATCH_MAX, LAYERS_MAX, PEERS_MAX
from .tables import NAME_RULE, SECONDS_MAX, Fields, check_name, check_schema, read_toml

SCHEMA = "gossip.plan/1"
_HEAD = (
    *("schema", "model", "micro_batches", "samples", "members_least", "predicted_step_s"),
    "activations",
    "stage",
)
_STAGE = ("layers", "peers", "pass_s")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """The layers ``first`` to ``last``, both included, on these peers.

    Attributes:
        pass_s: Seconds that each of the peers takes for a micro-batch, forward and backward, by
            its profile; empty where the plan does not say.
    """

    first: int
    last: int
    peers: tuple[str, ...]
    pass_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Assignment of layers to peers, and the division of a step.

    Attributes:
        model: The layers that the plan is for, as in ``PeerProfile``.
        micro_batches: Micro-batches of a step.
        samples: Samples of a micro-batch.
        members_least: Peers that each stage needs.
        predicted_step_s: Seconds of a step, when the plan was made.
        activations: As in ``PipelineConfig``.
    """

    model: str
    micro_batches: int
    samples: int
    members_least: int
    predicted_step_s: float
    stages: tuple[PlannedStage, ...]
    activations: Activations = "exact"


def plan_of(costs: Costs, work: TrainingStep, placement: Placement, step_s: float) -> PipelinePlan:
    bounds, seconds = placement.cut.bounds, costs.seconds(work.samples).sum(axis=0)
    stages = tuple(
        PlannedStage(
            begin,
            end - 1,
            tuple(costs.peers[peer] for peer in group),
            tuple(float(seconds[peer, begin:end].sum()) for peer in group),
        )
        for group, begin, end in zip(placement.groups, bounds, bounds[1:], strict=False)
    )
    return PipelinePlan(
        costs.model,
        work.micro_batches,
        work.samples,
        work.members_least,
        step_s,
        stages,
        work.activations,
    )


def write_plan(plan: PipelinePlan) -> str:
    """The plan as TOML, which ``read_plan`` reads back."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: PipelinePlan) -> Iterator[str]:
    yield f'schema = "{SCHEMA}"'
    yield f'model = "{plan.model}"  # of the profiles that it was made from'
    yield f"micro_batches = {plan.micro_batches}  # of a step"
    yield f"samples = {plan.samples}  # of a micro-batch"
    yield f"members_least = {plan.members_least}  # peers that each stage needs"
    yield f"predicted_step_s = {plan.predicted_step_s:.6g}"
    yield f'activations = "{plan.activations}"  # what stages send: "exact" or "bf16"'
    for stage in plan.stages:
        names = ", ".join(f'"{peer}"' for peer in stage.peers)
        yield "\n[[stage]]"
        yield f"layers = [{stage.first}, {stage.last}]  # from and to, both included"
        yield f"peers = [{names}]"
        if stage.pass_s:
            said = ", ".join(f"{seconds:.6g}" for seconds in stage.pass_s)
            yield f"pass_s = [{said}]  # a micro-batch on each; leave out where you change layers"


def read_plan(path: Path) -> PipelinePlan:
    """The plan in that file.

    Raises: ConfigError: It is no plan, or has a value that cannot be.
    """
    where = shown(path)
    said = read_toml(path, "gossip plan PROFILE... makes a plan of profiles")
    check_schema(where, said, SCHEMA)
    fields = Fields.of(where, said, _HEAD)
    stages = tuple(_stage(each) for each in fields.tables("stage", _STAGE, PEERS_MAX))
    if not stages:
        raise ConfigError(f"{where}: it has no stage", "each begins with [[stage]]")
    return PipelinePlan(
        fields.text("model", "[0-9a-f]{16}", "16 hexadecimal digits, as in the profiles' plans"),
        fields.count("micro_batches", 1, BATCH_MAX),
        fields.count("samples", 1, BATCH_MAX),
        fields.count("members_least", 1, PEERS_MAX),
        fields.number("predicted_step_s", SECONDS_MAX * BATCH_MAX, "seconds"),
        stages,
        _activations(fields),
    )


def _activations(fields: Fields) -> Activations:
    """Exact where the file says nothing."""
    if "activations" not in fields.values:
        return "exact"
    found = fields.text("activations", "exact|bf16", '"exact" or "bf16"')
    return "bf16" if found == "bf16" else "exact"


def _stage(fields: Fields) -> PlannedStage:
    first, last = fields.numbers("layers", 2, LAYERS_MAX - 1, "whole numbers")
    if first != int(first) or last != int(last) or first > last:
        raise fields.wrong("layers", "[FROM, TO], both included")
    peers = fields.values.get("peers")
    if not isinstance(peers, list) or not 0 < len(peers) <= PEERS_MAX:
        raise fields.wrong("peers", f"a list of names; {NAME_RULE}")
    pass_s: tuple[float, ...] = ()
    if "pass_s" in fields.values:
        pass_s = fields.numbers("pass_s", len(peers), SECONDS_MAX, "seconds")
    names = tuple(check_name(peer, fields.where) for peer in peers)
    return PlannedStage(int(first), int(last), names, pass_s)


def check_stages(plan: PipelinePlan) -> list[int]:
    """The first layer of each stage, and behind them the number of layers.

    Raises: ConfigError: A layer or a peer stands in the plan twice or a layer is left out, or a
        stage has too few peers.
    """
    bounds, seen = [0], set[str]()
    for number, stage in enumerate(plan.stages):
        if stage.first != bounds[-1]:
            raise ConfigError(
                f"stage {number} begins with layer {stage.first} where {bounds[-1]} is next",
                "each layer belongs to one stage, and stages are in the order of their layers",
            )
        bounds.append(stage.last + 1)
        for peer in stage.peers:
            if peer in seen:
                raise ConfigError(
                    f"the peer {peer} stands in the plan twice", "a peer has one stage"
                )
            seen.add(peer)
        if len(stage.peers) < plan.members_least:
            raise ConfigError(
                f"stage {number} has {len(stage.peers)} of the {plan.members_least} peers that "
                "members_least asks for",
                "give it more peers, or lower members_least",
            )
    return bounds


def check_plan(plan: PipelinePlan, costs: Costs) -> tuple[StageCosts, Placement]:
    """The plan's placement on these peers.

    Raises: ConfigError: It is for another model or other peers, leaves a layer out, gives a stage
        too few peers, or a peer more than its memory holds.
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
    return stage_costs, Placement(groups, cut)


def _groups(plan: PipelinePlan, costs: Costs) -> Groups:
    groups = []
    for number, stage in enumerate(plan.stages):
        for peer in stage.peers:
            if peer not in costs.peers:
                raise ConfigError(
                    f"stage {number} has the peer {peer}, of which there is no profile."
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
                    "give it fewer layers, or other peers",
                )
