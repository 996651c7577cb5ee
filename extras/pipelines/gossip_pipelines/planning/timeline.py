"""A step of a placement played out: which member computes which micro-batch when.

Order is 1F1B: a member prefers a backward pass that can begin, and begins no forward pass while as
many of its micro-batches wait for their backward pass as fill the stages from its own on (Narayanan
et al. 2019, "PipeDream", section 3.2). A link carries one thing at a time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from .costs import StageCosts
from .placement import Placement


@dataclass(frozen=True, slots=True)
class StagePass:
    """A forward or backward pass of one micro-batch. Seconds count from the step's beginning."""

    stage: int
    peer: int
    micro_batch: int
    backward: bool
    begin_s: float
    end_s: float


def dealt(shares: np.ndarray, count: int) -> list[int]:
    """Return the member for each of ``count`` micro-batches: each goes to the member that is
    furthest behind its share."""
    taken = np.zeros(len(shares))
    members = []
    for number in range(1, count + 1):
        member = int((shares * number - taken).argmax())
        taken[member] += 1
        members.append(member)
    return members


def play(stage_costs: StageCosts, placement: Placement) -> list[StagePass]:
    """Every pass of one step, in the order in which they begin. Exchanges are not played."""
    return _Player(stage_costs, placement).play()


@dataclass(slots=True)
class _Player:
    stage_costs: StageCosts
    placement: Placement
    tasks: list[StagePass] = field(default_factory=list)
    ready: dict[int, list[tuple[bool, int, int]]] = field(default_factory=dict)
    busy_until: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    link_until: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    waiting: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    arrivals: list[tuple[float, int, bool, int]] = field(default_factory=list)
    route: list[list[int]] = field(default_factory=list)

    def play(self) -> list[StagePass]:
        count, groups = self.stage_costs.work.micro_batches, self.placement.groups
        for group in groups:
            members = self.stage_costs.working(group)
            order = dealt(self.stage_costs.shares(members), count)
            self.route.append([members[member] for member in order])
        # (when, stage, forward before backward, micro-batch)
        self.arrivals = [(0.0, 0, False, number) for number in range(count)]
        heapq.heapify(self.arrivals)
        while self.arrivals:
            now = self.arrivals[0][0]
            touched = set()
            while self.arrivals and self.arrivals[0][0] <= now:
                _, stage, backward, number = heapq.heappop(self.arrivals)
                if number >= 0:
                    peer = self.route[stage][number]
                    self.ready.setdefault(peer, []).append((not backward, number, stage))
                    touched.add(peer)
                else:
                    touched.add(-number - 1)  # whose pass has ended
            for peer in sorted(touched):
                self._begin(peer, now)
        return sorted(self.tasks, key=lambda task: (task.begin_s, task.peer))

    def _begin(self, peer: int, now: float) -> None:
        """The next pass of a peer that is free."""
        if self.busy_until[peer] > now:
            return
        for each in sorted(self.ready.get(peer, [])):
            forward, number, stage = each
            room = self.stage_costs.in_flight(self.placement.groups, stage)
            if forward and self.waiting[peer] >= room:
                continue
            self.ready[peer].remove(each)
            self._run(peer, stage, number, not forward, now)
            return

    def _run(self, peer: int, stage: int, number: int, backward: bool, now: float) -> None:
        begin, end = self.placement.cut.bounds[stage : stage + 2]
        seconds = self.stage_costs.costs.seconds(self.stage_costs.work.samples)
        ended = now + float(seconds[int(backward), peer, begin:end].sum())
        self.tasks.append(StagePass(stage, peer, number, backward, now, ended))
        self.busy_until[peer] = ended
        self.waiting[peer] += -1 if backward else 1
        heapq.heappush(self.arrivals, (ended, stage, False, -peer - 1))
        following = stage + (-1 if backward else 1)
        if following == len(self.placement.groups):
            heapq.heappush(self.arrivals, (ended, stage, True, number))
        elif following >= 0:
            came = self._send(peer, stage, number, following, ended)
            heapq.heappush(self.arrivals, (came, following, backward, number))

    def _send(self, peer: int, stage: int, number: int, following: int, ended: float) -> float:
        costs, other = self.stage_costs.costs, self.route[following][number]
        layer = self.placement.cut.bounds[max(stage, following)] - 1
        nbytes = costs.sent_bytes(self.stage_costs.work)[layer]
        seconds = costs.link_fixed_s[peer, other] + costs.link_each_s[peer, other] * nbytes
        link = (min(peer, other), max(peer, other))
        self.link_until[link] = max(self.link_until[link], ended) + float(seconds)
        return self.link_until[link]
