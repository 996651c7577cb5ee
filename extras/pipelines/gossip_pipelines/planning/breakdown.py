"""Breakdown of the time of a placement, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .costs import StageCosts
from .placement import Placement


@dataclass(frozen=True, slots=True)
class StagePart:
    """Costs of one stage and its link to the next.

    Attributes:
        layers: First and last layer.
        peers: Names of the members.
        shares: Share of the micro-batches of each member.
        compute_s: Time of a micro-batch, forward and backward, on an average member.
        hold_s: Time that the other micro-batches of a step add in this stage.
        link_s: Time of a micro-batch to the next stage and back; 0 for the last stage.
        wait_s: Time that the other micro-batches add on the busiest of these links.
        exchange_s: Time of the round of the group.
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


def parts_of(stage_costs: StageCosts, placement: Placement) -> list[StagePart]:
    """Return the breakdown of each stage, in their order."""
    found, groups, bounds = [], placement.groups, placement.cut.bounds
    names = stage_costs.costs.peers
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
    """Return the slowest stage, and whether its link is the slowest part."""
    longest = [max(part.hold_s, part.wait_s) for part in parts]
    stage = longest.index(max(longest))
    return stage, parts[stage].wait_s > parts[stage].hold_s
