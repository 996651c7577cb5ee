"""Cost of the default rule while nothing is wrong: its accuracy less that of the mean.

Runs are paired by seed, on the digits, without a network. The trust table is on, as in a run.

    # five minutes of two processors
    python benchmarks/default_rule.py --seeds 5
    # runs of 1,000 rounds
    python benchmarks/default_rule.py --long 20
    # a convolutional network, a quarter of an hour
    python benchmarks/default_rule.py --mnist path/to/mnist.npz --seeds 3
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from gossip_lab.bench import data_sets
from gossip_lab.bench.estimates import Estimate
from gossip_lab.bench.learning import Trial, _Run, train
from gossip_lab.bench.rule_sources import digest
from gossip_lab.cells import CellStore, Row, run_cells
from gossip_lab.pages import markdown_table

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


@dataclass(frozen=True)
class Cell:
    """Two runs of one seed: with the mean and with the default rule."""

    stepper: str
    data: str
    peers: int
    seed: int
    rounds: int = ROUNDS
    source: str = data_sets.DIGITS
    rule: str = DEFAULT


class OptimizedRun(_Run):
    """A run that takes its aggregates as gradients for an optimizer of torch."""

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


def measure(cell: Cell) -> Row:
    """Return the results with the mean and with the rule."""
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
        for each in ("mean", cell.rule)
    ]
    return {"mean": asdict(found[0]), "rule": asdict(found[1])}


def difference(rows: list[Row], figure: str) -> Estimate:
    """Return the differences of a figure within each pair, in points."""
    pairs = [(row["mean"][figure] or 0.0, row["rule"][figure] or 0.0) for row in rows]
    return Estimate(tuple(100 * (after - before) for before, after in pairs))


def table(measured: Mapping[Cell, Row]) -> list[str]:
    sizes = sorted({cell.peers for cell in measured})
    lines = []
    for stepper, data in dict.fromkeys((cell.stepper, cell.data) for cell in measured):
        line = [stepper, data]
        for n in sizes:
            rows = [
                row
                for cell, row in measured.items()
                if (cell.stepper, cell.data, cell.peers) == (stepper, data, n)
            ]
            by, worst = difference(rows, "accuracy"), difference(rows, "worst_class").mean
            both = f"{by.mean:+.1f} ± {by.error:.1f} / {worst:+.0f}"
            if all(row["mean"] == row["rule"] for row in rows):
                both = "0"
            line.append(f"**{both}**" if by.mean < -0.5 or worst < -3 else both)
        lines.append(line)
    return markdown_table(("step", "data", *(f"n = {n}" for n in sizes)), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--mnist", help="mnist.npz: a convolutional network instead, 4 peers")
    parser.add_argument("--rule", default=DEFAULT)
    parser.add_argument("--into", type=Path, default=Path("runs/default_rule"), help="runs so far")
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
    cells = [replace(cell, rule=options.rule) for cell in cells]
    store: CellStore[Cell, Row] = CellStore(
        options.into, lambda cell: {**asdict(cell), "sources": digest(cell.rule)}
    )
    measured = run_cells(cells, measure, store, options.jobs)
    locked = [cell for cell, row in measured.items() if row["rule"]["honest_quarantined"]]
    print(f"{len(locked)} of {len(cells)} runs quarantined an honest peer: {locked}")
    by = difference(list(measured.values()), "accuracy")
    print(f"accuracy less that of the mean, all runs: {by.mean:+.2f} ± {by.error:.2f} points")
    equal = sum(row["mean"] == row["rule"] for row in measured.values())
    print(f"{equal} of {len(cells)} runs ended with the results of the mean")
    print("\n".join(table(measured)))


if __name__ == "__main__":
    main()
