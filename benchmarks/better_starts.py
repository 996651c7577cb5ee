"""Is it worth looking for a better start? Eight peers search among eight, or train from the first
step on: equal compute, five seeds.

    python benchmarks/better_starts.py --text tinyshakespeare.txt --data mnist.npz

All is played in one process, by the functions that `peer.search_start` runs in many (the halving,
the trials, the recipes). A step of the eight peers is one on the batch of all of them, which is
what the mean of their gradients gives; a step of a trial is on the batch of one peer, and eight of
them cost as much. A search that lasts as long as s steps therefore leaves s steps less for the
training. What was run is in the file of --into: after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cells import Row, add_arguments, name_of, put_between, rows_done
from char_gpt import CharacterModel, Contexts, loss_of, read_text
from mnist import read
from torch import Tensor, nn

from gossip.topologies import draw
from gossip_pipelines.starts import (
    Claim,
    FoundStart,
    Rung,
    StartRecipe,
    StartSearch,
    TrialTask,
    build,
    halve,
    recipes,
    run_trial,
)

PEERS = 8
CARELESS = 3.0
"""Factor by which a careless start multiplies all matrices."""
CASES = {
    "good": "eight recipes, the own one torch's",
    "careless": "the same, all matrices of the own one times 3",
    "seeds": "eight seeds of the own one",
}
HELD_OUT = {"char-GPT": 32, "MNIST CNN": 128}  # samples
MEASURING = 1.0
"""Cost of measuring the held-out loss of a trial, in steps on as many samples: three passes
forward."""
STEPS = {"char-GPT": (400, 800, 1200), "MNIST CNN": (600, 1200, 2400)}  # search included
TRIAL_STEPS = {"char-GPT": 100, "MNIST CNN": 160}
EARLY = 15
"""Steps of the trials of a search that compares the steep part of the loss."""
PEER_BATCH = {"char-GPT": 2, "MNIST CNN": 8}
TEST_PARTS = 1000


@dataclass(frozen=True)
class Cell:
    """One seed of a task, with and without search."""

    task: str
    case: str
    seed: int


@dataclass(frozen=True)
class Problem:
    """A task with its data.

    Attributes:
        make: Builds the model.
        loss: Of a model on a batch.
        optimizer: Makes one.
        draw_batch: ``(words, samples) -> batch``, the same for the same words.
        held_out: For the search.
        result: What counts in the end: the loss on the test data.
    """

    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    draw_batch: Callable[[tuple[object, ...], int], Any]
    held_out: Any
    result: Callable[[nn.Module], float]


class Data:
    """Read once by a worker."""

    text: tuple[Tensor, Tensor, int]
    mnist: Any


def prepare(data: str, text: str) -> None:
    torch.set_num_threads(1)
    Data.mnist, Data.text = read(Path(data)), read_text(Path(text))


def small_cnn() -> nn.Module:
    """13,000 parameters, the network of examples/mnist_cnn.py with one more layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def picked(words: tuple[object, ...], among: int, samples: int) -> Tensor:
    generator = torch.Generator().manual_seed(draw(*words) % 2**63)
    return torch.randint(among, (samples,), generator=generator)


def text_problem() -> Problem:
    text, validation, known = Data.text
    contexts = Contexts(text)
    held = HELD_OUT["char-GPT"]  # the end of the training text, which nobody trains on
    among = len(contexts) - held

    def draw_batch(words: tuple[object, ...], samples: int) -> Tensor:
        return torch.stack([contexts[int(at)] for at in picked(words, among, samples)])

    return Problem(
        partial(CharacterModel, known, 32, 2),
        loss_of,
        lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1),
        draw_batch,
        torch.stack([contexts[among + at] for at in range(held)]),
        lambda model: _mean_loss(loss_of, model, [validation]),
    )


def image_problem() -> Problem:
    data, held = Data.mnist, HELD_OUT["MNIST CNN"]
    among = len(data.images) - held

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def draw_batch(words: tuple[object, ...], samples: int) -> tuple[Tensor, Tensor]:
        at = picked(words, among, samples)
        return data.images[at], data.labels[at]

    parts = list(
        zip(data.test_images.split(TEST_PARTS), data.test_labels.split(TEST_PARTS), strict=True)
    )
    return Problem(
        small_cnn,
        loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        draw_batch,
        (data.images[among:], data.labels[among:]),
        lambda model: _mean_loss(loss, model, parts),
    )


def _mean_loss(loss: Callable[..., Tensor], model: nn.Module, parts: Sequence[Any]) -> float:
    model.eval()
    with torch.no_grad():
        found = statistics.fmean(float(loss(model, part)) for part in parts)
    model.train()
    return found


PROBLEMS = {"char-GPT": text_problem, "MNIST CNN": image_problem}


def careless(make: Callable[[], nn.Module]) -> nn.Module:
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(CARELESS)
    return model


def candidates_of(case: str, seed: int) -> tuple[StartRecipe, ...]:
    if case == "seeds":
        return tuple(StartRecipe(seed=seed * PEERS + at) for at in range(PEERS))
    return recipes(PEERS, seed * PEERS)


def search(problem: Problem, cell: Cell, lengths: StartSearch) -> tuple[FoundStart, float]:
    """The start that eight peers find, and for how many of their training steps that keeps them
    busy: a rung lasts as long as the trials of the peer that has most of them."""
    starts, batch = candidates_of(cell.case, cell.seed), PEER_BATCH[cell.task]
    lasted, measuring = 0.0, MEASURING * HELD_OUT[cell.task] / batch

    def run_rung(rung: Rung) -> Mapping[int, Mapping[int, Claim]]:
        nonlocal lasted
        most = max(len(trials) for trials in rung.trials.values())
        lasted += most * (rung.steps + measuring)
        task = TrialTask(
            problem.make,
            problem.loss,
            problem.optimizer,
            lambda order, step: problem.draw_batch(
                ("trial", cell.seed, rung.number, order, step), batch
            ),
            problem.held_out,
        )
        return {
            peer: {
                each: Claim(*run_trial(task, starts[each], rung.steps, at)) for each, at in trials
            }
            for peer, trials in rung.trials.items()
        }

    return halve(starts, range(PEERS), 0, lengths, run_rung), lasted


def train(
    problem: Problem, cell: Cell, recipe: StartRecipe, at: Collection[int]
) -> dict[int, float]:
    """The result after so many steps of all peers."""
    model = build(problem.make, recipe)
    optimizer, found = problem.optimizer(model.parameters()), dict[int, float]()
    for step in range(1, max(at) + 1):
        batch = problem.draw_batch(("train", cell.seed, step), PEERS * PEER_BATCH[cell.task])
        optimizer.zero_grad()
        problem.loss(model, batch).backward()
        optimizer.step()
        if step in at:
            found[step] = problem.result(model)
    return found


def play(cell: Cell) -> Row:
    """Each arm: what it has found, how long that lasted, and the results of equal compute."""
    problem = PROBLEMS[cell.task]()
    if cell.case == "careless":
        problem = replace(problem, make=partial(careless, problem.make))
    starts, totals = candidates_of(cell.case, cell.seed), STEPS[cell.task]
    arms: Row = {"none": {"start": 0, "lasted": 0, "settled": True}}
    for arm, lengths in (
        ("plateau", StartSearch(steps=TRIAL_STEPS[cell.task])),
        ("early", StartSearch(steps=EARLY, extensions=0)),
    ):
        found, lasted = search(problem, cell, lengths)
        arms[arm] = {
            "start": found.candidate,
            "lasted": math.ceil(lasted),
            "settled": found.settled,
        }
    of_start: dict[int, set[int]] = {}
    for arm in arms.values():
        left = {total - arm["lasted"] for total in totals if total > arm["lasted"]}
        of_start[arm["start"]] = of_start.get(arm["start"], set()) | left
    results = {at: train(problem, cell, starts[at], steps) for at, steps in of_start.items()}
    for arm in arms.values():
        arm["results"] = [results[arm["start"]].get(total - arm["lasted"]) for total in totals]
        arm["recipe"] = str(starts[arm["start"]])
    return arms


# --- the table ------------------------------------------------------------------------------------


def mean_and_error(values: Sequence[float]) -> str:
    """The mean and its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.3f} ± {error:.3f}"


def gain_of(rows: Sequence[Row], arm: str, at: int) -> str:
    """Return by how much the search lowers the loss, paired by seed; "-" if it lasts longer than
    the whole training."""
    pairs = [(row["none"]["results"][at], row[arm]["results"][at]) for row in rows]
    gains = [none - found for none, found in pairs if found is not None]
    return mean_and_error(gains) if len(gains) == len(rows) else "-"


def table(cells: Sequence[Cell], rows: Mapping[str, Row]) -> list[str]:
    lines = [
        "| task | what is compared | seeds | search, steps | all steps | loss without search | "
        "gain, on the plateau | gain, by the steep part |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, case in dict.fromkeys((cell.task, cell.case) for cell in cells):
        found = [
            rows[name_of(cell)]
            for cell in cells
            if (cell.task, cell.case) == (task, case) and name_of(cell) in rows
        ]
        if not found:
            continue
        lasted = statistics.fmean(row["plateau"]["lasted"] for row in found)
        for at, total in enumerate(STEPS[task]):
            without = mean_and_error([row["none"]["results"][at] for row in found])
            lines.append(
                f"| {task} | {CASES[case]} | {len(found)} | {lasted:.0f} | {total} | {without} | "
                f"{gain_of(found, 'plateau', at)} | {gain_of(found, 'early', at)} |"
            )
    return lines


def chosen(cells: Sequence[Cell], rows: Mapping[str, Row]) -> list[str]:
    """Return a table of the starts that were found, how often, and how many searches reached the
    plateau."""
    lines = [
        "| task | what is compared | found on the plateau | by the steep part | settled |",
        "|---|---|---|---|---|",
    ]
    for task, case in dict.fromkeys((cell.task, cell.case) for cell in cells):
        found = [
            rows[name_of(cell)]
            for cell in cells
            if (cell.task, cell.case) == (task, case) and name_of(cell) in rows
        ]
        if not found:
            continue
        names = []
        for arm in ("plateau", "early"):
            kinds = Counter(row[arm]["recipe"].split(", seed")[0] for row in found)
            names.append("; ".join(f"{kind}: {count}" for kind, count in kinds.most_common()))
        settled = sum(row["plateau"]["settled"] for row in found)
        lines.append(f"| {task} | {CASES[case]} | {' | '.join(names)} | {settled}/{len(found)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="a file of plain text")
    add_arguments(parser, Path("runs/better_starts.jsonl"), jobs=1, seeds=5)
    options = parser.parse_args()
    cells = [
        Cell(task, case, seed)
        for cases in (("good", "careless"), ("seeds",))
        for seed in range(options.seeds)
        for task in PROBLEMS
        for case in cases
    ]
    found = rows_done(cells, play, options, prepare, str(options.text.resolve()))
    rows = {json.dumps(row["cell"], sort_keys=True): row for row in found}
    text = "\n".join([*table(cells, rows), "", *chosen(cells, rows)])
    if options.write is not None:
        put_between(options.write, "better starts", text)
    print(json.dumps(found) if options.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
