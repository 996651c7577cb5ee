"""AdamW in gossip rounds: whether exchanges of parameters should also mix its moments.

Each peer steps with AdamW on the mean gradient of its neighbourhood, in the fast engine of the
playground. A round that mixes parameters mixes nothing else (as in ``gossip run``, and in
DADAM, Nazari et al. 2019, arXiv:1901.09109), or the second moments too (Chen et al. 2021,
arXiv:2109.03194), or both moments. Each variant gets its best learning rate. First moments are
never mixed alone: where all own gradients are 0, a peer would divide those of others by 0.

``python benchmarks/adamw_moments.py`` prints the table of docs/results/playground.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gossip_lab import estimates
from gossip_lab.pages import markdown_table
from gossip_lab.playground import World
from gossip_lab.playground.attacking import Kind
from gossip_lab.playground.fast_gossip import GossipWorld
from gossip_lab.playground.judging import Neighbourhoods
from gossip_lab.playground.parts import Parts
from gossip_lab.playground.played import measure

Mixed = Literal["none", "second", "both"]
BASE = World(peers=16, topology="random-k:k=3", model="mlp:32")
SPLITS, MIX_EVERY = ("iid", "dirichlet:0.1"), (1, 4)
RATES = (0.01, 0.03, 0.1)
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01  # the defaults of torch.optim.AdamW
METRICS = ("mean", "worst", "loss", "consensus_distance")


class AdamWorld(GossipWorld):
    """World in gossip rounds whose peers step with AdamW."""

    def __init__(self, parts: Parts, mixed: Mixed) -> None:
        super().__init__(parts)
        self._moments = [torch.zeros(parts.peers, parts.task.cohort.d) for _ in BETAS]
        self._mixed = {"none": [], "second": self._moments[1:], "both": self._moments}[mixed]
        self._steps = torch.zeros(parts.peers, 1)

    def _mix(self, *args: Any) -> Tensor:
        moves, near = super()._mix(*args), self._near
        scales = self._mixing.scales(near.counts - 1, near.peers)[:, None]
        shares = torch.zeros(len(near.peers), len(self._steps))
        shares[near.owners, near.members] = torch.from_numpy(1 / near.counts).float()[near.owners]
        for moments in self._mixed:
            moments[near.peers] += scales * (shares @ moments - moments[near.peers])
        return moves

    def _collect(self, kind: Kind, *args: Any) -> Neighbourhoods:
        near = super()._collect(kind, *args)
        if kind == "parameters":
            self._near = near
        return near

    def _step(self, at: Any, results: Tensor, *_: Any) -> None:
        self._steps[at] += 1
        means = []
        for moments, beta, power in zip(self._moments, BETAS, (1, 2), strict=True):
            moments[at] = beta * moments[at] + (1 - beta) * results**power
            means.append(moments[at] / (1 - beta ** self._steps[at]))
        lr = self._task.lr
        self._here[at] *= 1 - lr * DECAY
        self._here[at] -= lr * means[0] / (means[1].sqrt() + EPS)


def play(world: World, mixed: Mixed, rounds: int) -> dict[str, float]:
    """Return the metrics of a world after its rounds."""
    parts = world.build()
    playing = AdamWorld(parts, mixed)
    for _ in range(rounds):
        moment = playing.play_round()
    found = {row.metric: row.value for row in measure(moment, parts.task, parts.mishaps, 0)}
    return {name: found[name] for name in METRICS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--splits", nargs="+", default=SPLITS)
    given = parser.parse_args()
    rows = []
    for split, mix_every in itertools.product(given.splits, MIX_EVERY):
        plain: list[float] = []
        for mixed in get_args(Mixed):
            found = {
                rate: [
                    play(
                        BASE.replace(split=split, mix_every=mix_every, lr=rate, seed=seed),
                        mixed,
                        given.rounds,
                    )
                    for seed in range(given.seeds)
                ]
                for rate in RATES
            }
            rate = min(RATES, key=lambda rate: np.mean([each["loss"] for each in found[rate]]))
            values = {name: [each[name] for each in found[rate]] for name in METRICS}
            plain = plain or values["mean"]
            gain = estimates.Estimate(tuple(np.subtract(values["mean"], plain).tolist()))
            wide = gain.interval[1] - gain.mean
            ends = [f"{np.mean(values[name]):.4f}" for name in METRICS]
            ends.append(f"{gain.mean:+.4f} ± {wide:.4f}")
            rows.append((split, str(mix_every), mixed, f"{rate:g}", *ends))
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    columns = ("split", "mixed every", "moments mixed", "rate", *METRICS, "mean accuracy, gain")
    print("\n".join(markdown_table(columns, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
