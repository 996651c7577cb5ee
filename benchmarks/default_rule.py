"""Cost of the default rule while nothing is wrong: its accuracy less that of the mean.

Runs are paired by seed, on the digits, without a network. The trust table is on, as in a run.

    # five minutes of two processors, and runs of 1,000 rounds
    python benchmarks/default_rule.py --seeds 5
    python benchmarks/default_rule.py --long 20
    # a convolutional network, in a quarter of an hour
    python benchmarks/default_rule.py --mnist path/to/mnist.npz --seeds 3
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch

from gossip_lab.bench import data_sets
from gossip_lab.bench.learning import Trial, TrialResult, _Run, train

DEFAULT = "guarded_mean"
PEERS = (2, 3, 4, 8, 16)
SPLITS = {"equal": "iid", "Dirichlet(0.1)": "dirichlet:0.1", "sorted": "sorted"}
ROUNDS, LONG_ROUNDS, LONG_PEERS = 150, 1000, 10
STEPPERS = {
    # name: batch, learning rate, local steps
    "SGD": (32, 0.5, 1),
    "SGD, batch 2": (2, 0.1, 1),
    "momentum 0.9": (32, 0.05, 1),
    "AdamW": (32, 0.01, 1),
    "AdamW, batch 2": (2, 0.003, 1),
    "10 local steps": (32, 0.1, 10),
}


CNN = "SGD, CNN"
CNN_STEPPERS = {CNN: (8, 0.2, 1)}


class Cell(NamedTuple):
    """Two runs of one seed: with the mean and with the default rule."""

    stepper: str
    data: str
    peers: int
    seed: int
    rounds: int = ROUNDS
    source: str = data_sets.DIGITS


class OptimizedRun(_Run):
    """A run whose aggregates are steps of an optimizer of torch."""

    kind = "SGD"
    optimizer: torch.optim.Optimizer | None = None

    def _step(self, aggregate: torch.Tensor) -> torch.Tensor:
        if self.outer is not None:
            return super()._step(aggregate)
        if self.optimizer is None:
            self.taken = torch.nn.Parameter(self.model.parameters.clone())
            self.optimizer = (
                torch.optim.AdamW([self.taken], lr=self.trial.lr)
                if self.kind.startswith("AdamW")
                else torch.optim.SGD(
                    [self.taken],
                    lr=self.trial.lr,
                    momentum=0.9 if self.kind.startswith("momentum") else 0.0,
                )
            )
        self.taken.data.copy_(self.model.parameters)
        self.taken.grad = aggregate.to(self.taken.dtype)
        self.optimizer.step()
        return self.model.parameters - self.taken.detach()


def measure(cell: Cell, rule: str) -> tuple[Cell, TrialResult, TrialResult]:
    torch.set_num_threads(1)
    batch, lr, local_steps = {**STEPPERS, **CNN_STEPPERS}[cell.stepper]
    found = [
        train(
            Trial(
                each,
                n=cell.peers,
                f=0,
                declared_f=cell.peers // 4,
                seed=cell.seed,
                rounds=cell.rounds,
                batch=batch,
                lr=lr,
                local_steps=local_steps,
                split=SPLITS[cell.data],
                trust=True,
                model="small_cnn" if cell.stepper == CNN else "mlp",
                test_samples=1000 if cell.stepper == CNN else 0,
            ),
            data_sets.load(cell.source),
            type("Run", (OptimizedRun,), {"kind": cell.stepper}),
        )
        for each in ("mean", rule)
    ]
    return cell, found[0], found[1]


def difference(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of the paired differences in points, and its standard error."""
    apart = [100 * (after - before) for before, after in pairs]
    error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
    return statistics.mean(apart), error


def table(measured: dict[Cell, tuple[TrialResult, TrialResult]]) -> str:
    sizes = sorted({cell.peers for cell in measured})
    lines = [
        "| step | data | " + " | ".join(f"n = {n}" for n in sizes) + " |",
        "|---|---|" + "---|" * len(sizes),
    ]
    for stepper, data in dict.fromkeys((cell.stepper, cell.data) for cell in measured):
        line = f"| {stepper} | {data} |"
        for n in sizes:
            cells = [both for cell, both in measured.items() if cell[:3] == (stepper, data, n)]
            by, error = difference([(a.accuracy or 0.0, b.accuracy or 0.0) for a, b in cells])
            worst, _ = difference([(a.worst_class or 0.0, b.worst_class or 0.0) for a, b in cells])
            both = f"{by:+.1f} ± {error:.1f} / {worst:+.0f}"
            if all(a == b for a, b in cells):
                both = "0"
            line += f" **{both}** |" if by < -0.5 or worst < -3 else f" {both} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--mnist", help="mnist.npz: a convolutional network instead, 4 peers")
    parser.add_argument("--rule", default=DEFAULT)
    parser.add_argument("--long", type=int, metavar="SEEDS", help="runs of 1,000 rounds instead")
    options = parser.parse_args()
    if options.long:
        cells = [
            Cell("SGD", data, LONG_PEERS, seed, LONG_ROUNDS)
            for data, seed in itertools.product(("equal", "Dirichlet(0.1)"), range(options.long))
        ]
    elif options.mnist:
        cells = [
            Cell(CNN, data, 4, seed, ROUNDS, options.mnist)
            for data, seed in itertools.product(SPLITS, range(options.seeds))
        ]
    else:
        cells = [
            Cell(*rest) for rest in itertools.product(STEPPERS, SPLITS, PEERS, range(options.seeds))
        ]
    with ProcessPoolExecutor(options.jobs) as pool:
        measured = {}
        for cell, *both in pool.map(measure, cells, itertools.repeat(options.rule)):
            measured[cell] = (both[0], both[1])
            if len(measured) % 50 == 0:
                print(f"{len(measured)} of {len(cells)} pairs of runs", flush=True)
    locked = [cell for cell, (_, default) in measured.items() if default.honest_quarantined]
    print(f"{len(locked)} of {len(cells)} runs quarantined an honest peer: {locked}")
    by, error = difference([(a.accuracy or 0.0, b.accuracy or 0.0) for a, b in measured.values()])
    print(f"accuracy less that of the mean, all runs: {by:+.2f} ± {error:.2f} points")
    equal = sum(before == after for before, after in measured.values())
    print(f"{equal} of {len(cells)} runs ended with the results of the mean")
    print(table(measured))


if __name__ == "__main__":
    main()
