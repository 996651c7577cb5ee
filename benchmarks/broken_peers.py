"""Cost of one broken peer, and of a rule when no peer is broken: accuracy on the digits.

Accuracies are in percent, also on the worst class, without a network. All peers have a share of the
samples, the broken one included.

    python benchmarks/broken_peers.py --seeds 5 --write docs/results/broken_peers.md
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from gossip_lab.bench import data_sets, splits
from gossip_lab.bench.learning import Trial, _Run, train

RULES = ("mean", "suspicion", "guarded_mean")
FAULTS = (
    *("nan", "inf", "bit_flip", "scale*1000", "sign_flip*10", "gaussian", "stale", "zero"),
    "sign_flip",
)
SPLITS = {"equal": "iid", "Dirichlet(0.1)": "dirichlet:0.1"}
PEERS = (4, 8)
ROUNDS = 150
WHEN: dict[str, Callable[[int], bool]] = {
    "start": lambda round_id: True,
    "middle": lambda round_id: round_id >= ROUNDS // 2,
    "tenth": lambda round_id: round_id % 10 == 0,
}
BEGIN, END = "<!-- broken peers -->\n", "<!-- end -->\n"


class Cell(NamedTuple):
    """A row of the table with one rule and one seed."""

    peers: int
    data: str
    fault: str
    when: str
    rule: str
    seed: int


class BrokenRun(_Run):
    """A run in which the last peer has a share of the samples, and is broken in some rounds."""

    when = "start"

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        trial = self.trial
        labels = self.data.labels
        self.shares = splits.split(trial.split, labels, trial.n, trial.batch, trial.seed)

    def _offered(self, round_id: int) -> torch.Tensor:
        attack = self.attack
        if not WHEN[self.when](round_id):
            self.attack = None
        try:
            return super()._offered(round_id)
        finally:
            self.attack = attack


def measure(cell: Cell) -> tuple[Cell, float, float, bool]:
    """Return the accuracy in percent, that of the worst class, and whether the broken peer was
    quarantined."""
    torch.set_num_threads(1)
    kind = type("Run", (BrokenRun,), {"when": cell.when})
    trial = Trial(
        cell.rule,
        cell.fault,
        n=cell.peers,
        f=1,
        seed=cell.seed,
        rounds=ROUNDS,
        split=SPLITS[cell.data],
        trust=True,
        declared_f=cell.peers // 4,
    )
    found = train(trial, data_sets.load("digits"), kind)
    accuracy, worst = found.accuracy or 0.0, found.worst_class or 0.0
    return cell, 100 * accuracy, 100 * worst, found.liars_quarantined > 0


def rows() -> list[tuple[int, str, str, str]]:
    found = [(n, data, "none", "start") for n, data in product(PEERS, SPLITS)]
    found += list(product(PEERS, SPLITS, FAULTS, WHEN))
    return sorted(found, key=lambda row: (row[0], list(SPLITS).index(row[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", type=Path, help="page with the table between its two marks")
    options = parser.parse_args()
    cells = [
        Cell(*row, rule, seed) for row, rule, seed in product(rows(), RULES, range(options.seeds))
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        measured = {cell: rest for cell, *rest in pool.map(measure, cells, chunksize=8)}
    lines = [
        "| peers, data | fault | rounds | " + " | ".join(f"`{rule}`" for rule in RULES) + " |",
        "|---|---|---|" + "---|" * len(RULES),
    ]
    for n, data, fault, when in rows():
        name = fault.replace("*", " \N{MULTIPLICATION SIGN} ")
        line = f"| {n}, {data} | {name} | {'' if fault == 'none' else when} |"
        for rule in RULES:
            of = [measured[Cell(n, data, fault, when, rule, s)] for s in range(options.seeds)]
            accuracies = [accuracy for accuracy, *_ in of]
            error = statistics.stdev(accuracies) / options.seeds**0.5 if options.seeds > 1 else 0.0
            worst = statistics.mean(each[1] for each in of)
            line += f" {statistics.mean(accuracies):.1f} ± {error:.1f} / {worst:.0f} |"
        lines.append(line)
    table = "\n".join(lines) + "\n"
    print(table)
    if options.write is not None:
        text = options.write.read_text()
        before, rest = text.split(BEGIN)
        options.write.write_text(before + BEGIN + table + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
