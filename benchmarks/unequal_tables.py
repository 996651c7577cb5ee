"""The tables of ``docs/results/unequal_data.md``: rules with a judge if the data differ.

    # digits: two splits, every attack, five seeds; half an hour of a core
    python benchmarks/unequal_tables.py --write docs/results/unequal_data.md
    # MNIST with a convolutional network; another half hour
    python benchmarks/unequal_tables.py --mnist mnist.npz --write docs/results/unequal_data.md
    # every attack; two hours
    python benchmarks/unequal_tables.py --mnist path/to/mnist.npz --only every

Every run is stored in ``--into``: after an interrupt the same command resumes. Without ``--write``
the tables are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from gossip_lab.bench.data_sets import DIGITS
from gossip_lab.bench.learning import Trial, TrialResult
from gossip_lab.bench.robustness import every_attack
from gossip_lab.bench.robustness_page import percent
from gossip_lab.bench.tables import RobustnessTable
from gossip_lab.bench.trials import run_all
from gossip_lab.pages import markdown_table, replace_between

JUDGED = "judged_clipping"
N, F = 10, 2
SPLITS = ("dirichlet:0.1", "sorted")
CNN = {
    "model": "cnn_mnist",
    "rounds": 100,
    "batch": 8,
    "reference": 64,
    "test_samples": 1000,
}
CNN_TABLES = (
    (
        "dirichlet:0.1",
        0.2,
        ("none", "min_sum"),
        ("none", "inf", "min_max", "min_sum", "sign_flip*10"),
    ),
    ("dirichlet:0.1", 0.1, ("none",), ("none", "min_max")),
    ("sorted", 0.2, ("none",), ("none", "min_sum")),
    ("sorted", 0.1, ("none",), ("none", "min_max", "min_sum", "zero")),
)
"""Split, learning rate, and the attacks on the mean and on the judged rule: what the mean makes of
others the digits show."""
CNN_EVERY_RATE, CNN_EVERY_SEEDS = 0.1, (0,)
"""Learning rate and seeds of the tables of MNIST under every attack."""
WEAK = ("ipm*0.1", "sign_flip")
"""Beside the attacks that the bench tries by default, which has stronger forms of them."""
SAMPLES = (16, 64, 256)

Cells = dict[Trial, TrialResult]


@dataclass(frozen=True, slots=True)
class Part:
    """A table of the page: attacks down, rules across.

    Attributes:
        mark: Where it stands in the page.
        attacks: Of each rule, those that it was tried under.
    """

    mark: str
    split: str
    attacks: dict[str, tuple[str, ...]]
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(attack for some in self.attacks.values() for attack in some))

    def table(self, rule: str) -> RobustnessTable:
        return RobustnessTable(
            N,
            F,
            F,
            (rule,),
            self.attacks[rule],
            self.seeds,
            0.9,
            {**self.settings, "split": self.split},
        )

    def trials(self) -> list[Trial]:
        return [trial for rule in self.attacks for trial in self.table(rule).trials()]

    def lines(self, found: Cells) -> list[str]:
        """Mean ± standard error, and of the judged rule the accuracy on its worst class."""
        rules = list(self.attacks)
        alone = self.table(rules[0]).reference(found)
        rows = [
            [
                f"`{attack}`",
                *(self._cell(rule, attack, found) for rule in rules),
                self._worst_class(attack, found),
            ]
            for attack in self.rows
        ]
        worst = []
        for rule in rules:
            of_rule = self.table(rule).cells(found)
            able = [(cell.mean, attack) for (_, attack), cell in of_rule.items() if cell.accuracies]
            worst.append(f"{100 * min(able)[0]:.1f}, `{min(able)[1]}`" if able else "")
        rows.append(["**worst**", *worst, self._least_class(found)])
        columns = ("attack", *(f"`{rule}`" for rule in rules), "its worst class")
        alone_line = f"The mean of the honest alone: {percent(alone)}."
        return [alone_line, "", *markdown_table(columns, rows)]

    def _cell(self, rule: str, attack: str, found: Cells) -> str:
        if attack not in self.attacks[rule]:
            return ""
        return percent(self.table(rule).cells(found)[rule, attack].estimate)

    def _class(self, attack: str, found: Cells) -> float:
        return fmean(self.table(JUDGED).cells(found)[JUDGED, attack].worst_classes)

    def _worst_class(self, attack: str, found: Cells) -> str:
        return f"{100 * self._class(attack, found):.1f}"

    def _least_class(self, found: Cells) -> str:
        least = min(self.attacks[JUDGED], key=lambda attack: self._class(attack, found))
        return f"{100 * self._class(least, found):.1f}, `{least}`"


def all_attacks() -> tuple[str, ...]:
    first, *others = every_attack()
    return (first, *sorted([*others, *WEAK]))


def digits() -> list[Part]:
    return [
        Part(
            f"digits {split}",
            split,
            dict.fromkeys(("mean", "fltrust", "zeno_pp", JUDGED), all_attacks()),
        )
        for split in SPLITS
    ]


def mnist() -> list[Part]:
    return [
        Part(
            f"mnist {split} {lr:g}",
            split,
            {rule: some for rule, some in (("mean", mean), (JUDGED, judged)) if some},
            {**CNN, "lr": lr},
        )
        for split, lr, mean, judged in CNN_TABLES
    ]


def mnist_every() -> list[Part]:
    settings = {**CNN, "lr": CNN_EVERY_RATE}
    rules = {"mean": ("none",), JUDGED: all_attacks()}
    return [
        Part(f"mnist {split} every", split, rules, settings, CNN_EVERY_SEEDS) for split in SPLITS
    ]


def few_samples() -> list[Part]:
    """Return the tables of a judge with few samples, by their number and by split."""
    return [
        Part(str(samples), split, {JUDGED: ("none", "min_max")}, {"reference": samples}, (0, 1, 2))
        for samples in SAMPLES
        for split in SPLITS
    ]


def sample_lines(parts: Sequence[Part], found: Cells) -> list[str]:
    def shown(samples: int) -> list[str]:
        return [
            percent(part.table(JUDGED).cells(found)[JUDGED, attack].estimate)
            for part in parts
            if part.mark == str(samples)
            for attack in part.attacks[JUDGED]
        ]

    columns = ["samples of the judge", "Dirichlet(0.1), nobody lies", "`min_max`"]
    columns += ["sorted, nobody lies", "`min_max`"]
    return markdown_table(columns, [[str(samples), *shown(samples)] for samples in SAMPLES])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=Path("runs/unequal"), help="folder of runs")
    parser.add_argument("--write", type=Path, help="page to put the tables in, at their marks")
    parser.add_argument("--mnist", type=Path, help="mnist.npz, for the tables of MNIST too")
    parser.add_argument("--only", choices=("digits", "mnist", "every"), help="no others")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    made: dict[str, list[str]] = {}
    if options.only in (None, "digits"):
        parts, few = digits(), few_samples()
        trials = [trial for part in [*parts, *few] for trial in part.trials()]
        found = run_all(trials, options.into, DIGITS, options.jobs)
        made |= {part.mark: part.lines(found) for part in parts}
        made["samples of the judge"] = sample_lines(few, found)
    for wanted, parts in (("mnist", mnist()), ("every", mnist_every())):
        if options.mnist is not None and options.only in (None, wanted):
            trials = [trial for part in parts for trial in part.trials()]
            found = run_all(trials, options.into, str(options.mnist), options.jobs)
            made |= {part.mark: part.lines(found) for part in parts}
    for mark, lines in made.items():
        if options.write is None:
            print(f"\n{mark}\n", *lines, sep="\n")
        else:
            replace_between(options.write, mark, lines)


if __name__ == "__main__":
    main()
