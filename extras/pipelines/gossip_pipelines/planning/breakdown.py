"""Times of a placement, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .placement import Placement


@dataclass(frozen=True, slots=True)
class StagePart:
    """Costs of one stage and of its link to the next stage.

    Attributes:
        layers: Numbers of the first and the last layer.
        peers: Names of the members.
        shares: Fraction of the micro-batches that each member computes.
        compute_s: Mean time of one micro-batch, forward and backward.
        hold_s: Additional time of the other micro-batches of a step in this stage.
        link_s: Time of the transfer of one micro-batch to the next stage and of its gradient back;
            0 for the last stage.
        wait_s: Additional time of the other micro-batches on the busiest link to the next stage.
        exchange_s: Time of the round in which this group agrees on its update.
        memory_bytes: Memory that each member needs.
    """

    layers: tuple[int, int]
    peers: tuple[str, ...]
    shares: dict[str, float]
    compute_s: float
    hold_s: float
    link_s: float
    wait_s: float
    exchange_s: float
    memory_bytes: float


def parts_of(placement: Placement) -> list[StagePart]:
    """Return the costs of each stage, in the order of the stages."""
    found = []
    stage_costs, groups = placement.stage_costs, placement.groups
    bounds, names = placement.cut.bounds, stage_costs.costs.peers
    for stage, group in enumerate(groups):
        run = bounds[stage + 1], bounds[stage]
        of_group = stage_costs.runs(group)
        link_s = wait_s = 0.0
        if stage + 1 < len(groups):
            links, waits = stage_costs.way(group, groups[stage + 1])
            link_s, wait_s = float(links[run[0]]), float(waits[run[0]])
        shares = zip(group, stage_costs.shares(group), strict=True)
        found.append(
            StagePart(
                (run[1], run[0] - 1),
                tuple(names[peer] for peer in group),
                {names[peer]: float(share) for peer, share in shares},
                float(of_group.fill[run]),
                float(of_group.hold[run]),
                link_s,
                wait_s,
                float(of_group.exchange[run]),
                float(stage_costs.memory_bytes(group, stage_costs.in_flight(groups, stage))[run]),
            )
        )
    return found


def bottleneck(parts: Sequence[StagePart]) -> tuple[int, bool]:
    """Return the slowest stage, and whether its link takes more time than its computation."""
    longest = [max(part.hold_s, part.wait_s) for part in parts]
    stage = longest.index(max(longest))
    return stage, parts[stage].wait_s > parts[stage].hold_s
