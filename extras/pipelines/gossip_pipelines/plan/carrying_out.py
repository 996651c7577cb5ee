"""``gossip run --plan``: options of a run that follow from a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.run import shown


def options_of(path: Path, peers: int | None) -> dict[str, Any]:
    """Return the options of a run that follow from a plan. Peers are numbered in the order in which
    the plan lists them.

    Args:
        peers: Number of peers on the command line, if there is one.
    Raises: ConfigError: The file is not a plan, or the plan has only one stage or another number of
        peers.
    """
    from gossip_pipelines.planning import check_stages, read_plan

    plan = read_plan(path)
    check_stages(plan)
    names = [name for stage in plan.stage for name in stage.peers]
    if len(plan.stage) < 2:
        raise ConfigError(
            f"{shown(path)} has one stage; a pipeline needs at least two",
            "without --plan peers train data-parallel",
        )
    if peers is not None and peers != len(names):
        few = " (each stage needs at least one peer)" if peers < len(plan.stage) else ""
        raise ConfigError(
            f"-n {peers}: {shown(path)} has {len(names)} peers in {len(plan.stage)} stages",
            f"leave out -n{few}, or make a plan for {peers} peers: gossip plan PROFILE...",
        )
    stages = [
        {
            "layers": stage.layers,
            "peers": tuple(map(names.index, stage.peers)),
            "pass_s": stage.pass_s,
        }
        for stage in plan.stage
    ]
    pipeline = {
        "model": plan.model,
        "micro_batches": plan.micro_batches,
        "samples": plan.samples,
        "names": tuple(names),
        "activations": plan.activations,
        "stages": stages,
    }
    return {"peers": len(names), "pipeline": pipeline}
