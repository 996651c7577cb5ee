"""Peers to stages, and layers with them: every assignment of a few peers, local moves for more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from random import Random

import numpy as np

from .costs import Group, StageCosts
from .exact import Cut, best_cut, cut_at

Groups = tuple[Group, ...]
STRIDES = (-2, -1, 1, 2)
"""By how many layers a local move shifts a bound."""


@dataclass(frozen=True, slots=True)
class Placement:
    """``groups[s]`` has the layers from ``cut.bounds[s]`` up to ``cut.bounds[s + 1]``."""

    groups: Groups
    cut: Cut

    @property
    def step_s(self) -> float:
        return self.cut.step_s


def every_assignment(peers: int, stages: int, members_least: int) -> Iterator[Groups]:
    """All ways to give each stage a group of so many peers or more. Peers may be left out."""
    for places in product(range(stages + 1), repeat=peers):
        groups = groups_of(places, stages)
        if all(len(group) >= members_least for group in groups):
            yield groups


def best_placement(
    stage_costs: StageCosts, assignments: Iterator[Groups], below: float = math.inf
) -> Placement | None:
    """The best of these assignments, each with its best cuts. None: no one takes less than
    ``below`` seconds."""
    best: Placement | None = None
    for groups in assignments:
        if (cut := best_cut(stage_costs.tables(groups), below)) is not None:
            best, below = Placement(groups, cut), cut.step_s
    return best


def improved(stage_costs: StageCosts, groups: Groups, seed: int) -> Placement | None:
    """Return the placement that moves lead to from one assignment. Each moves one peer, or swaps
    two, as long as that makes the step shorter.

    Each assignment is tried with its best cuts. None: neither the assignment nor a neighbour fits.
    """
    draw = Random(seed)
    found = best_placement(stage_costs, iter([groups]))
    better = True
    while better:
        better = False
        nearby = list(neighbours(stage_costs, found.groups if found else groups))
        draw.shuffle(nearby)
        for each in nearby:
            below = found.step_s if found else math.inf
            if (other := best_placement(stage_costs, iter([each]), below)) is not None:
                found, better = other, True
                break
    return found


def neighbours(stage_costs: StageCosts, groups: Groups) -> Iterator[Groups]:
    """Assignments that differ by the place of one peer, or by two that changed places."""
    least, count = stage_costs.work.members_least, len(stage_costs.costs.peers)
    place_of = {peer: stage for stage, group in enumerate(groups) for peer in group}
    places = [place_of.get(peer, len(groups)) for peer in range(count)]
    for peer, place in enumerate(places):
        if place < len(groups) and len(groups[place]) <= least:
            continue
        for other in range(len(groups) + 1):
            if other != place:
                yield groups_of([*places[:peer], other, *places[peer + 1 :]], len(groups))
    for one, two in combinations(range(count), 2):
        if places[one] != places[two]:
            swapped = list(places)
            swapped[one], swapped[two] = places[two], places[one]
            yield groups_of(swapped, len(groups))


def groups_of(places: Sequence[int], stages: int) -> Groups:
    """``places``: the stage of each peer; ``stages`` itself for none."""
    return tuple(
        tuple(peer for peer, place in enumerate(places) if place == stage)
        for stage in range(stages)
    )


def polished(stage_costs: StageCosts, start: Placement, move_peers: bool) -> Placement:
    """The local optimum by moves of one bound, or of one or two peers, without dynamic
    programming. A placement that does not fit comes nearer to one that does."""
    best, cost = start, _cost(stage_costs, start.groups, start.cut.bounds)
    better = True
    while better:
        better = False
        for groups, bounds in _moves(stage_costs, best, move_peers):
            if (other := _cost(stage_costs, groups, bounds)) < cost:
                best, cost, better = place(stage_costs, groups, bounds), other, True
                break
    return best


def place(stage_costs: StageCosts, groups: Groups, bounds: tuple[int, ...]) -> Placement:
    return Placement(groups, cut_at(stage_costs.tables(groups), bounds))


def _moves(
    stage_costs: StageCosts, start: Placement, move_peers: bool
) -> Iterator[tuple[Groups, tuple[int, ...]]]:
    bounds = start.cut.bounds
    for at in range(1, len(bounds) - 1):
        for stride in STRIDES:
            if bounds[at - 1] < bounds[at] + stride < bounds[at + 1]:
                yield start.groups, (*bounds[:at], bounds[at] + stride, *bounds[at + 1 :])
    for first, last in combinations(range(1, len(bounds) - 1), 2):
        for stride in (-1, 1):
            moved = [*bounds[:first], *(each + stride for each in bounds[first : last + 1])]
            moved += bounds[last + 1 :]
            if all(low < high for low, high in pairwise(moved)):
                yield start.groups, tuple(moved)
    if move_peers:
        for groups in neighbours(stage_costs, start.groups):
            yield groups, bounds


def _cost(stage_costs: StageCosts, groups: Groups, bounds: tuple[int, ...]) -> tuple[float, float]:
    """Bytes that are lacking, then seconds."""
    lacking = 0.0
    for stage, group in enumerate(groups):
        in_flight = stage_costs.in_flight(groups, stage)
        need = stage_costs.memory_bytes(group, in_flight)[bounds[stage + 1], bounds[stage]]
        limits = stage_costs.costs.memory_bytes[list(group)]
        lacking += float(np.maximum(0.0, need - limits).sum())
    return lacking, 0.0 if lacking else place(stage_costs, groups, bounds).step_s
