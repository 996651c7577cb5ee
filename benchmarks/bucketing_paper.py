"""A published table of robust learning where no two workers have the same data, ours beside the
authors' numbers.

    # 16 cells, one seed: hours on a few cores
    python benchmarks/bucketing_paper.py --data path/to/mnist.npz
    # the sharpest contrast: two cells
    python benchmarks/bucketing_paper.py --rules rfa --attacks ipm --momenta 0
    # puts the table into the page
    python benchmarks/bucketing_paper.py --write docs/results/bucketing_paper.md

Karimireddy, He, Jaggi 2022, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing"
(arXiv:2006.09365), third experiment: MNIST, 25 workers of which 5 lie, 600 steps at learning rate
0.01, batch 32 a worker, a network of 1.2 million parameters (convolutions of 32 and 64 channels,
two dense layers, dropout). The training set, sorted by label, is cut in 20 pieces, one an honest
worker; liars draw from all of it. RFA: 8 steps of smoothed Weiszfeld from zero. Centered clipping:
3 steps around the last aggregate, radius 10 / (1 - momentum). Honest workers send momenta m = beta
m + g. Bit flipping sends the negated gradient, inner product manipulation -0.1 times the honest
mean. Accuracy in per cent, the mean of the last 5 evaluations, one every 30 steps.

Theirs: mean and deviation over seeds 0, 1, 2, computed from the logs that the authors publish with
their code. Every run is kept in --into and not run again: remove the file when a rule has changed.
Exit codes: 0 every cell agrees, 1 one does not, 2 no data, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cells import Row, add_arguments, mean_and_deviation, put_between, rows_done
from mnist import Mnist, read
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gossip.aggregators import load
from gossip.aggregators.registry import BoundRule

WORKERS, ATTACKERS, BATCH, STEPS, LEARNING_RATE = 25, 5, 32, 600, 0.01
HONEST = WORKERS - ATTACKERS
EVERY, LAST = 30, 5  # steps between evaluations, evaluations averaged
RULES = ("rfa", "centered_clipping")
ATTACKS = ("ipm", "bit_flip")
TITLES = {
    "rfa": "RFA",
    "centered_clipping": "centered clipping",
    "ipm": "inner product manipulation",
    "bit_flip": "bit flip",
}
# (rule, momentum, bucketing) to what the authors found under bit_flip and ipm.
PUBLISHED: dict[tuple[str, float, int], dict[str, tuple[float, float]]] = {
    ("rfa", 0.0, 0): {"bit_flip": (68.7, 2.2), "ipm": (14.6, 6.9)},
    ("rfa", 0.0, 2): {"bit_flip": (87.6, 2.0), "ipm": (90.6, 0.4)},
    ("rfa", 0.9, 0): {"bit_flip": (82.8, 0.8), "ipm": (13.5, 1.9)},
    ("rfa", 0.9, 2): {"bit_flip": (96.8, 0.2), "ipm": (95.9, 0.3)},
    ("centered_clipping", 0.0, 0): {"bit_flip": (75.2, 0.2), "ipm": (91.8, 0.2)},
    ("centered_clipping", 0.0, 2): {"bit_flip": (91.7, 0.2), "ipm": (92.6, 0.2)},
    ("centered_clipping", 0.9, 0): {"bit_flip": (97.6, 0.1), "ipm": (97.6, 0.1)},
    ("centered_clipping", 0.9, 2): {"bit_flip": (97.7, 0.1), "ipm": (97.7, 0.1)},
}
NEAR, HIGH, COLLAPSED = (
    2.0,
    90.0,
    50.0,
)  # points; published cells from HIGH up are met within NEAR, those below COLLAPSED collapse


@dataclass(frozen=True, slots=True)
class BucketingCell:
    rule: str
    attack: str
    momentum: float
    bucketing: int  # updates in a bucket; 0: none
    seed: int


# --- one run --------------------------------------------------------------------------------------


class _BucketingWorker:
    """Data that a process keeps from run to run."""

    data: Mnist


def prepare(path: str, threads: int) -> None:
    torch.set_num_threads(threads)
    _BucketingWorker.data = read(Path(path))


def rule_of(cell: BucketingCell) -> BoundRule:
    specs = {
        "rfa": "rfa:nu=0.1,steps=8",
        "centered_clipping": f"centered_clipping:tau={10 / (1 - cell.momentum):.12g},steps=3",
    }
    return load(
        f"bucketing:s={cell.bucketing},seed={cell.seed}+{specs[cell.rule]}"
        if cell.bucketing
        else specs[cell.rule]
    )


def network() -> nn.Module:
    """The authors'. The maximum is taken before the ReLU instead of after it: the same function,
    with a quarter of the work."""
    layers = nn.Sequential(
        *(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
        ),
        *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    options: dict[str, Any] = {"memory_format": torch.channels_last}  # torch's overloads lack it
    return layers.to(**options)


class Shards:
    """Samples that each worker draws. An epoch is 30 batches, in which no worker draws a sample
    twice."""

    def __init__(self, labels: Tensor, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(1000 + seed)
        by_label = labels.argsort(stable=True)
        everything = torch.arange(len(labels))
        self.pieces = [*by_label.chunk(HONEST), *([everything] * ATTACKERS)]

    def epoch(self) -> list[list[Tensor]]:
        """For each of 30 steps the samples of each worker."""
        drawn = [
            torch.split(
                piece[torch.randperm(len(piece), generator=self.generator)[: EVERY * BATCH]], BATCH
            )
            for piece in self.pieces
        ]
        return [[worker[step] for worker in drawn] for step in range(EVERY)]


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    parts = torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def accuracy(model: nn.Module, data: Mnist) -> float:
    """On the test set, in per cent."""
    model.eval()
    with torch.no_grad():
        parts = zip(
            torch.split(data.test_images, 500), torch.split(data.test_labels, 500), strict=True
        )
        return (
            100
            * sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in parts)
            / len(data.test_labels)
        )


def play(cell: BucketingCell) -> Row:
    """Trains once."""
    data = _BucketingWorker.data
    torch.manual_seed(cell.seed)  # the network's start, and dropout
    model = network()
    parameters: list[Tensor] = list(model.parameters())
    shards = Shards(data.labels, cell.seed)
    rule = rule_of(cell)
    sizes = [parameter.numel() for parameter in parameters]
    momenta = torch.zeros(HONEST, sum(sizes))
    updates = torch.empty(WORKERS, sum(sizes))
    previous = torch.zeros(sum(sizes))
    accuracies: list[float] = []
    for epoch in range(STEPS // EVERY):
        model.train()
        for step, drawn in enumerate(shards.epoch()):
            # who manipulates products needs no data
            for worker in range(HONEST if cell.attack == "ipm" else WORKERS):
                at = drawn[worker]
                found = gradient(
                    model,
                    data.images[at].contiguous(memory_format=torch.channels_last),
                    data.labels[at],
                )
                if worker < HONEST:
                    momenta[worker].mul_(cell.momentum).add_(found)
                else:
                    updates[worker] = -found
            updates[:HONEST] = momenta
            if cell.attack == "ipm":
                updates[HONEST:] = -0.1 * momenta.mean(dim=0)
            # The last aggregate is what clipping starts from; buckets are drawn anew in every step.
            previous = rule(updates, f=ATTACKERS, previous=previous, round_id=epoch * EVERY + step)
            with torch.no_grad():
                for parameter, part in zip(parameters, torch.split(previous, sizes), strict=True):
                    parameter -= LEARNING_RATE * part.view(parameter.shape)
        last = epoch >= STEPS // EVERY - LAST
        # what is not averaged is only looked at now and then: it costs as much as three steps
        if last or epoch % LAST == 0:
            accuracies.append(accuracy(model, data))
            print(
                f"  {cell}: step {(epoch + 1) * EVERY} of {STEPS}, {accuracies[-1]:.2f} %",
                file=sys.stderr,
                flush=True,
            )
    return {
        "accuracy": sum(accuracies[-LAST:]) / LAST,
        "rule": repr(rule),
        "accuracies": accuracies,
    }


# --- the table ------------------------------------------------------------------------------------

Key = tuple[str, str, float, int]  # rule, attack, momentum, bucketing
Found = dict[Key, list[float]]


def agrees(ours: float, theirs: float) -> bool:
    """Whether a cell says the same: near where it works, collapsed where it collapses, in between
    where it is in between."""
    if theirs >= HIGH:
        return abs(ours - theirs) <= NEAR
    return ours < COLLAPSED if theirs < COLLAPSED else ours >= COLLAPSED


def verdicts(found: Found) -> Iterator[tuple[Key, float, float | None, tuple[float, float], bool]]:
    """Cell, our mean and deviation, theirs, whether they agree."""
    for key, values in sorted(
        found.items(), key=lambda item: (item[0][1], RULES.index(item[0][0]), *item[0][2:])
    ):
        rule, attack, momentum, bucketing = key
        theirs = PUBLISHED[rule, momentum, bucketing][attack]
        mean, deviation = mean_and_deviation(values)
        yield key, mean, deviation, theirs, agrees(mean, theirs[0])


def table(found: Found) -> str:
    lines = [
        "| attack | rule | momentum | bucketing | ours (seeds) | published (3 seeds) | |",
        "|---" * 7 + "|",
    ]
    for key, mean, deviation, theirs, same in verdicts(found):
        rule, attack, momentum, bucketing = key
        ours = f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"
        lines.append(
            f"| {TITLES[attack]} | {TITLES[rule]} | {momentum:g} | {bucketing or 'no'} | {ours} "
            f"({len(found[key])}) | {theirs[0]} ± {theirs[1]} | "
            f"{'agrees' if same else '**differs**'} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--momenta", nargs="+", type=float, choices=(0.0, 0.9), default=[0.0, 0.9])
    parser.add_argument(
        "--bucketing",
        nargs="+",
        type=int,
        choices=(0, 2),
        default=[0, 2],
        help="updates in a bucket; 0: none",
    )
    parser.add_argument(
        "--threads", type=int, help="of each process; they share out the processors by default"
    )
    processors = os.cpu_count() or 2
    add_arguments(parser, Path("runs/bucketing_paper.jsonl"), jobs=max(1, processors // 2), seeds=1)
    options = parser.parse_args()
    # More threads than processors wait for each other: 2 processes with 2 threads each on 2
    # processors took five times as long.
    threads = (
        max(1, processors // max(1, options.jobs)) if options.threads is None else options.threads
    )
    if threads < 1:
        parser.error("--threads is at least 1")
    cells = [
        BucketingCell(rule, attack, momentum, bucketing, seed)
        for seed in range(options.seeds)
        for attack in options.attacks
        for rule in options.rules
        for momentum in options.momenta
        for bucketing in options.bucketing
    ]
    rows = rows_done(cells, play, options, prepare, threads)
    found: Found = {}
    for row in rows:
        cell = BucketingCell(**row["cell"])
        found.setdefault((cell.rule, cell.attack, cell.momentum, cell.bucketing), []).append(
            row["accuracy"]
        )
    print(json.dumps(rows) if options.json else table(found))
    if options.write:
        put_between(options.write, "bucketing table", table(found))
    return 0 if found and all(same for *_, same in verdicts(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
