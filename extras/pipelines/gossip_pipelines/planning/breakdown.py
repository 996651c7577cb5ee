"""Breakdown of the time of a placement, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .costs import StageCosts
from .placement import Placement


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage, and the link behind it.

    Attributes:
        compute_s: Of a micro-batch, forward and backward, on an average member.
        hold_s: What the other micro-batches of a step add here.
        way_s: Of a micro-batch to the next stage and back; 0 behind the last one.
        wait_s: What the other micro-batches add on the busiest of these links.
        exchange_s: Of the group's round.
        need_bytes: Memory of each member.
        shares: Of the micro-batches that each working member takes, by its position.
    """

    compute_s: float
    hold_s: float
    way_s: float
    wait_s: float
    exchange_s: float
    need_bytes: float
    shares: dict[int, float]


def parts_of(stage_costs: StageCosts, placement: Placement) -> list[StagePart]:
    """Return the breakdown of each stage, in their order."""
    found, groups, bounds = [], placement.groups, placement.cut.bounds
    for stage, group in enumerate(groups):
        run = bounds[stage + 1], bounds[stage]
        of_group = stage_costs.runs(group)
        way_s = wait_s = 0.0
        if stage + 1 < len(groups):
            ways, waits = stage_costs.way(group, groups[stage + 1])
            way_s, wait_s = float(ways[run[0]]), float(waits[run[0]])
        working = stage_costs.working(group)
        found.append(
            StagePart(
                float(of_group.fill[run]),
                float(of_group.hold[run]),
                way_s,
                wait_s,
                float(of_group.exchange[run]),
                float(stage_costs.memory_bytes(group, stage_costs.in_flight(groups, stage))[run]),
                dict(zip(working, map(float, stage_costs.shares(working)), strict=True)),
            )
        )
    return found


def bottleneck(parts: Sequence[StagePart]) -> tuple[int, bool]:
    """The stage that the others wait for, and whether it is its link."""
    longest = [max(part.hold_s, part.wait_s) for part in parts]
    stage = longest.index(max(longest))
    return stage, parts[stage].wait_s > parts[stage].hold_s
