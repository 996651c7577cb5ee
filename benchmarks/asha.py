"""Compares ASHA with whole grids: whether ASHA finds the best cell, and its share of the steps.

For each seed a grid of learning rates is played to its end, and again with early stopping: by
rounds of halving (``local``), or by ASHA (``optuna``). The seed determines the random order of the
cells. ``python benchmarks/asha.py --seeds 10`` prints a line for each seed. The exit code is 1 if
the best cell is found with at most 60 % of the steps in fewer than 9 of 10 seeds.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from gossip_lab.playground import World, grid
from gossip_lab.playground.grids import store_of
from gossip_lab.playground.played import Row
from gossip_lab.playground.sweeps import Sweep

RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
ROUNDS, EVERY = 54, 2
SHARE_MAX, FOUND_MIN = 0.6, 0.9


def best_rate(sweep: Sweep) -> float:
    """Return the learning rate of the cell with the best mean accuracy at the end."""
    ends = {
        cell.world.lr: result.run.curve("mean")[-1][1]
        for cell, result in sweep.results.items()
        if not result.stopped
    }
    return max(ends, key=lambda rate: ends[rate])


def count_rounds(folder: Path) -> int:
    """Return the number of played rounds. With halving, a cell restarts for each rung, and its
    rounds count again."""
    cells = store_of(folder / "cells").rows()
    return sum(Row(*cell["rows"][-1]).round for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    options = parser.parse_args()
    seeds, found = options.seeds, 0
    print("seed  best   with ASHA  share of the steps")
    for seed in range(options.first, options.first + seeds):
        rates = random.Random(seed).sample(RATES, len(RATES))
        world = World(peers=8, topology="random-k", split="dirichlet:1.0", seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            whole, stopped = [
                grid(
                    world,
                    rounds=ROUNDS,
                    every=EVERY,
                    into=Path(folder) / name,
                    engine=engine,
                    asha=asha,
                    quiet=True,
                    lr=rates,
                )
                for name, engine, asha in (("whole", "local", ""), ("part", options.engine, "mean"))
            ]
            share = count_rounds(Path(folder) / "part") / count_rounds(Path(folder) / "whole")
        best, picked = best_rate(whole), best_rate(stopped)
        found += best == picked and share <= SHARE_MAX
        print(f"{seed:4}  {best:5g}  {picked:9g}  {share:.2f}", flush=True)
    print(f"best cell found with at most {SHARE_MAX:.0%} of the steps: {found} of {seeds} seeds")
    return 0 if found >= FOUND_MIN * seeds else 1


if __name__ == "__main__":
    sys.exit(main())
