"""Simulation of a step: the member that computes each micro-batch, and the times of its passes.

The order is 1F1B (Narayanan et al. 2019, "PipeDream", section 3.2). A member prefers a backward
pass if one can begin. Between forward and backward pass, a member has a limited number of
micro-batches: as many as fill this stage and all later stages. A link transfers one tensor at a
time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .placement import Placement


@dataclass(frozen=True, slots=True)
class StagePass:
    """A forward or backward pass of one micro-batch. Its times count from the beginning of the
    step."""

    stage: int
    peer: int
    micro_batch: int
    backward: bool
    begin_s: float
    end_s: float


class _Ready(NamedTuple):
    """A pass that can begin, because its input has arrived."""

    came_s: float
    peer: int
    stage: int
    micro_batch: int
    backward: bool

    def order(self, free_s: float) -> tuple[float, bool, int, int]:
        """Return a sort key; the pass with the smallest key is next. ``free_s``: time at which the
        peer is free."""
        return max(self.came_s, free_s), not self.backward, self.micro_batch, self.stage


def dealt(shares: np.ndarray, count: int) -> list[int]:
    """Return the member that computes each of ``count`` micro-batches. Each micro-batch is assigned
    to the member that so far has the fewest micro-batches compared with its share."""
    taken = np.zeros(len(shares))
    members = []
    for number in range(1, count + 1):
        member = int((shares * number - taken).argmax())
        taken[member] += 1
        members.append(member)
    return members


def play(placement: Placement) -> list[StagePass]:
    """Return all passes of one step in the order of their beginning. Exchanges are left out."""
    stage_costs, groups = placement.stage_costs, placement.groups
    costs, work = stage_costs.costs, stage_costs.work
    bounds, seconds = placement.cut.bounds, costs.seconds(work.samples)
    sent_bytes = costs.sent_bytes(work)
    rooms = [stage_costs.in_flight(groups, stage) for stage in range(len(groups))]
    route = []
    for group in groups:
        order = dealt(stage_costs.shares(group), work.micro_batches)
        route.append([group[member] for member in order])
    # Time at which each peer, or each link (a pair of peers), is free.
    free_s: defaultdict[int | tuple[int, int], float] = defaultdict(float)
    owed: Counter[int] = Counter()  # Number of backward passes that each peer has to compute.
    # In the first stage each member reads its micro-batches one after the other.
    ready = {_Ready(0.0, peer, 0, route[0].index(peer), False) for peer in route[0]}
    passes = []
    while ready:
        able = (each for each in ready if each.backward or owed[each.peer] < rooms[each.stage])
        task = min(able, key=lambda each: each.order(free_s[each.peer]))
        ready.remove(task)
        came_s, peer, stage, number, backward = task
        begin = max(came_s, free_s[peer])
        end = begin + float(seconds[int(backward), peer, bounds[stage] : bounds[stage + 1]].sum())
        passes.append(StagePass(stage, peer, number, backward, begin, end))
        free_s[peer] = end
        owed[peer] += -1 if backward else 1
        if stage == 0 and not backward and peer in route[0][number + 1 :]:
            ready.add(_Ready(0.0, peer, 0, route[0].index(peer, number + 1), False))
        following = stage + (-1 if backward else 1)
        if following == len(groups):
            ready.add(_Ready(end, peer, stage, number, True))
        elif following >= 0:
            other = route[following][number]
            nbytes = sent_bytes[bounds[max(stage, following)] - 1]
            way_s = costs.link_fixed_s[peer, other] + costs.link_each_s[peer, other] * nbytes
            link = (min(peer, other), max(peer, other))
            free_s[link] = max(free_s[link], end) + float(way_s)
            ready.add(_Ready(free_s[link], other, following, number, backward))
    return passes
