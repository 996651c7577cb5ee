"""Differentiable search for a placement: gradient descent on a continuous relaxation from many
random starts in parallel. The result is rounded to whole peers, and then gets exact cuts.

Layers: Logits determine the widths of the stages. The cumulative sums of the widths are the cuts. A
sigmoid of the distance of a layer from cut s is the part of the layer in the first s stages, so no
cuts are enumerated.

Peers: Logits determine the part of each peer in each stage or in no stage. A log-sum-exp replaces
the maximum over stages. The temperatures of all three functions fall geometrically.

If the order of the groups is given, dynamic programming is exact and much faster. This search is
for an unknown order of peers with unequal links. With such links, the best cuts of the first stages
depend on later groups.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .costs import StageCosts
from .placement import Groups, Placement, best_placement, groups_of

SHARPEST, SOFTEST = 0.05, 1.0
PENALTY = 10.0
"""Penalty for an excess of 100 % over a limit, in units of a typical step."""
STARTS = 128  # number of random starts, which are optimized in parallel
STEPS = 80  # number of Adam steps
RATE = 0.15  # learning rate


def search_placement(
    stage_costs: StageCosts, stages: int, seed: int, starts: int = STARTS, steps: int = STEPS
) -> Placement | None:
    """Search for the placement of peers in ``stages`` stages with the shortest step. The result is
    None if no start leads to a placement that fits. ``seed``: seed of the random starts."""
    relaxed = _Relaxation(stage_costs, stages)
    draw = torch.Generator().manual_seed(seed)
    widths = torch.randn(starts, stages, generator=draw, dtype=torch.float64)
    peers = len(stage_costs.costs.peers)
    owners = torch.randn(starts, peers, stages + 1, generator=draw, dtype=torch.float64)
    optimizer = torch.optim.Adam([widths.requires_grad_(), owners.requires_grad_()], lr=RATE)
    for step in range(steps):
        optimizer.zero_grad()
        heat = SOFTEST * (SHARPEST / SOFTEST) ** (step / max(1, steps - 1))
        relaxed.loss(widths, owners, heat).sum().backward()
        optimizer.step()
    rounded = dict.fromkeys(map(relaxed.whole_groups, owners.detach().numpy()))
    return best_placement(stage_costs, iter(rounded))


class _Relaxation:
    """Time of a step as a smooth function of logits, in units of a typical step."""

    def __init__(self, stage_costs: StageCosts, stages: int) -> None:
        costs, work = stage_costs.costs, stage_costs.work
        self.work, self.stages = work, stages
        seconds = torch.from_numpy(stage_costs.seconds)
        self.unit = float(seconds.sum(1).min()) * max(1.0, work.micro_batches / stages)
        self.seconds = seconds / self.unit
        self.link_fixed = torch.from_numpy(costs.link_fixed_s + costs.link_fixed_s.T) / self.unit
        self.link_each = torch.from_numpy(costs.link_each_s + costs.link_each_s.T) / self.unit
        self.sent = torch.from_numpy(costs.sent_bytes(work))
        self.state = torch.from_numpy(costs.parameter_bytes) * work.state_copies
        self.kept = torch.from_numpy(costs.kept_bytes) * work.samples
        self.limits = torch.from_numpy(costs.memory_bytes)
        in_flight = [min(stages - stage, work.micro_batches) for stage in range(stages)]
        self.in_flight = torch.tensor(in_flight, dtype=torch.float64)

    def loss(self, widths: Tensor, owners: Tensor, heat: float) -> Tensor:
        """Return the time of a step plus penalties for exceeded limits, ``(starts,)``."""
        layers, crossing = self._layers(widths, heat)
        members = (owners / heat).softmax(-1)[..., :-1].transpose(1, 2)  # (R, S, P)
        count = members.sum(-1).clamp(min=1e-3)  # (R, S)
        times = layers @ self.seconds.T  # (R, S, P)
        beat = 1.0 / (members / (times + 1e-9)).sum(-1).clamp(min=1e-9)
        ways = self._ways(members / count[..., None], crossing)  # (R, S - 1)
        waits = (self.work.micro_batches - count).clamp(min=0) * beat
        routes = count[:, :-1] * count[:, 1:]
        queues = (self.work.micro_batches / routes - 1).clamp(min=0) * ways
        longest = torch.cat([waits, queues], dim=1)
        smooth = 0.05 * heat * longest.detach().amax(1, keepdim=True).clamp(min=1e-6)
        hold = smooth[:, 0] * torch.logsumexp(longest / smooth, dim=1)
        short = (self.work.members_least - count).clamp(min=0).square().sum(1)
        over = self._over(layers, members)
        return (count * beat).sum(1) + ways.sum(1) + hold + PENALTY * (short + over)

    def _layers(self, widths: Tensor, heat: float) -> tuple[Tensor, Tensor]:
        """Return the part of each layer in each stage, ``(R, S, L)``, and the bytes at each cut,
        ``(R, S - 1)``."""
        count = len(self.sent)
        ends = widths.softmax(-1).cumsum(-1)[:, :-1] * count
        middle = torch.arange(count, dtype=torch.float64) + 0.5
        before = torch.sigmoid((ends[..., None] - middle) / heat)  # (R, S - 1, L)
        edge = before.new_ones(len(before), 1, count)
        prefix = torch.cat([torch.zeros_like(edge), before, edge], dim=1)
        falls = before - torch.cat([before[..., 1:], torch.zeros_like(before[..., :1])], dim=2)
        return prefix.diff(dim=1).clamp(min=0), falls.clamp(min=0) @ self.sent

    def _ways(self, parts: Tensor, crossing: Tensor) -> Tensor:
        here, there = parts[:, :-1], parts[:, 1:]
        fixed = ((here @ self.link_fixed) * there).sum(-1)
        return fixed + ((here @ self.link_each) * there).sum(-1) * crossing

    def _over(self, layers: Tensor, members: Tensor) -> Tensor:
        need = layers @ self.state + (layers @ self.kept) * self.in_flight
        lacking = (need[..., None] / self.limits - 1).clamp(min=0)  # (R, S, P)
        return (lacking * members).sum((1, 2))

    def whole_groups(self, logits: np.ndarray) -> Groups:
        """Assign each peer to the stage with its largest logit, or to no stage. Then fill up groups
        with too few members. Candidates are peers without a stage, and peers in groups with members
        to spare; the peer with the smallest decrease of its logit is moved."""
        places, least = logits.argmax(1), self.work.members_least
        while True:
            sizes = np.bincount(places, minlength=self.stages + 1)[: self.stages]
            (lacking,) = np.nonzero(sizes < least)
            if not len(lacking):
                return groups_of([int(each) for each in places], self.stages)
            stage = int(lacking[0])
            spare = [
                peer
                for peer, place in enumerate(places)
                if place == self.stages or sizes[place] > least
            ]
            loss = [logits[peer, places[peer]] - logits[peer, stage] for peer in spare]
            places[spare[int(np.argmin(loss))]] = stage
