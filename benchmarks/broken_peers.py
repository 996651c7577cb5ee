"""Cost of one broken peer, and of a rule when no peer is broken: accuracy on the digits.

Accuracies are in percent, also on the worst class, without a network. All peers have a share of the
samples, the broken one included.

    python benchmarks/broken_peers.py --seeds 5 --write docs/results/broken_peers.md
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch

from gossip_lab.bench import data_sets, splits
from gossip_lab.bench.estimates import Estimate
from gossip_lab.bench.learning import Trial, _Run, train
from gossip_lab.bench.robustness_page import percent
from gossip_lab.bench.rule_sources import digest
from gossip_lab.cells import CellStore, Row, run_cells
from gossip_lab.pages import markdown_table, replace_between

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


@dataclass(frozen=True)
class Cell:
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


def measure(cell: Cell) -> Row:
    """Return the accuracy, and that of the worst class."""
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
    return {"accuracy": found.accuracy or 0.0, "worst class": found.worst_class or 0.0}


def rows() -> list[tuple[int, str, str, str]]:
    found = [(n, data, "none", "start") for n, data in product(PEERS, SPLITS)]
    found += list(product(PEERS, SPLITS, FAULTS, WHEN))
    return sorted(found, key=lambda row: (row[0], list(SPLITS).index(row[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("runs/broken_peers"), help="runs so far")
    parser.add_argument("--write", type=Path, help="page with the table between its two marks")
    options = parser.parse_args()
    cells = [
        Cell(*row, rule, seed) for row, rule, seed in product(rows(), RULES, range(options.seeds))
    ]
    store: CellStore[Cell, Row] = CellStore(
        options.into, lambda cell: {**asdict(cell), "sources": digest(cell.rule)}
    )
    measured = run_cells(cells, measure, store, options.jobs)
    table = []
    for n, data, fault, when in rows():
        name = fault.replace("*", " \N{MULTIPLICATION SIGN} ")
        row = [f"{n}, {data}", name, "" if fault == "none" else when]
        for rule in RULES:
            of = [measured[Cell(n, data, fault, when, rule, s)] for s in range(options.seeds)]
            accuracy = percent(Estimate(tuple(each["accuracy"] for each in of)))
            worst = statistics.mean(each["worst class"] for each in of)
            row.append(f"{accuracy} / {100 * worst:.0f}")
        table.append(row)
    lines = markdown_table(("peers, data", "fault", "rounds", *(f"`{r}`" for r in RULES)), table)
    print("\n".join(lines))
    if options.write is not None:
        replace_between(options.write, "broken peers", lines)


if __name__ == "__main__":
    main()
