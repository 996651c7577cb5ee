"""Placement of peers and layers in stages. With few peers all assignments are tried; with more
peers a local search is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

from .costs import Group, StageCosts
from .exact import Cut, best_cut

Groups = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups of peers and cuts of the layers. ``groups[s]`` has the layers from ``cut.bounds[s]``
    to ``cut.bounds[s + 1] - 1``. ``stage_costs``: costs for which it was chosen."""

    stage_costs: StageCosts
    groups: Groups
    cut: Cut

    @property
    def step_s(self) -> float:
        return self.cut.step_s


def every_assignment(peers: int, stages: int, members_least: int) -> Iterator[Groups]:
    """Yield all assignments of peers to stages with at least ``members_least`` peers in each stage.
    A peer may have no stage."""
    for places in product(range(stages + 1), repeat=peers):
        groups = groups_of(places, stages)
        if all(len(group) >= members_least for group in groups):
            yield groups


def best_placement(
    stage_costs: StageCosts, assignments: Iterator[Groups], below: float = math.inf
) -> Placement | None:
    """Return the assignment with the shortest step, and its best cuts. Return None if no step is
    shorter than ``below`` seconds."""
    best: Placement | None = None
    for groups in assignments:
        if (cut := best_cut(stage_costs.tables(groups), below)) is not None:
            best, below = Placement(stage_costs, groups, cut), cut.step_s
    return best


def improved(stage_costs: StageCosts, groups: Groups, seed: int) -> Placement | None:
    """Improve an assignment by local search. Each move puts one peer into another group or swaps
    two peers, and is made if the step becomes shorter.

    Each assignment is evaluated with its best cuts. The result is None if neither the assignment
    nor a neighbour fits.
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
    """Yield the assignments in which one peer has another stage or two peers are swapped."""
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
    """Return the groups of an assignment. ``places``: the stage of each peer, or ``stages`` for a
    peer without a stage."""
    return tuple(
        tuple(peer for peer, place in enumerate(places) if place == stage)
        for stage in range(stages)
    )
