"""A trained net goes on without a layer: what is lost with it, and training that prepares for that.

    python benchmarks/lost_layers.py --text tinyshakespeare.txt --data mnist.npz

A layer is *dropped* (its input is handed on as it is), *zeroed* (zeros are handed on in place of
its output) or *noisy* (normal noise is added to its output, with the output's own deviation). All
layers of a net keep the shape of what passes them. Training that prepares for it drops each layer
of each step with a probability: stochastic depth (Huang et al. 2016, arXiv:1603.09382), layer
dropout (Fan et al. 2020, arXiv:1909.11556). What was run is in the file of --into: after Ctrl-C the
same command goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from better_starts import Data, prepare
from cells import Row, add_arguments, name_of, put_between, rows_done
from char_gpt import CharacterModel, Contexts, loss_of
from torch import Tensor, nn

NETS = {
    "char-GPT": "char-GPT, 6 residual blocks (loss)",
    "residual MLP": "residual MLP, 6 layers (% right)",
    "plain MLP": "plain MLP, 6 layers (% right)",
    "plain CNN": "plain CNN, 6 layers (% right)",
}
LAYERS = 6
STEPS = {"char-GPT": 500, "residual MLP": 1000, "plain MLP": 1000, "plain CNN": 500}
BATCH = {"char-GPT": 16, "residual MLP": 64, "plain MLP": 64, "plain CNN": 64}
TESTED = 2000  # images
HOW = ("dropped", "zeroed", "noisy")
SEVERAL = (2, 3)
"""Numbers of layers that are also lost at once."""
SETS = 6
"""Different sets of so many layers, drawn once for all nets."""


@dataclass(frozen=True)
class Cell:
    """One net, trained once, with every loss of layers."""

    net: str
    drop: float
    seed: int


class Losable(nn.Module):
    """A layer that can be lost.

    Attributes:
        state: One of ``HOW``, or "" while it is there.
        drop: Probability that a step of the training is without it.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.state, self.drop = layer, "", 0.0

    def forward(self, inputs: Tensor, *rest: Any, **options: Any) -> Tensor:
        if self.state == "dropped" or (self.training and float(torch.rand(())) < self.drop):
            return inputs
        outputs: Tensor = self.layer(inputs, *rest, **options)
        if self.state == "zeroed":
            return torch.zeros_like(outputs)
        if self.state == "noisy":
            return outputs + torch.randn_like(outputs) * outputs.std()
        return outputs


class Blocks(nn.Module):
    """Blocks of a transformer, one after the other."""

    def __init__(self, layers: Sequence[Losable]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs, src_mask=mask)
        return inputs


class Residual(nn.Module):
    """Adds what ``layer`` makes of its input to it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = inputs + self.layer(inputs)
        return outputs


def make(net: str) -> tuple[nn.Module, list[Losable]]:
    """The net, and its layers that may be lost."""
    if net == "char-GPT":
        model = CharacterModel(Data.text[2], 48, LAYERS)
        layers = [Losable(layer) for layer in model.layers.layers]
        model.add_module("layers", Blocks(layers))
        return model, layers
    if net == "plain CNN":
        layers = [
            Losable(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()))
            for _ in range(LAYERS)
        ]
        begin = [nn.Conv2d(1, 16, 5, stride=4), nn.ReLU()]
        return nn.Sequential(*begin, *layers, nn.Flatten(), nn.Linear(16 * 36, 10)), layers
    layers = []
    for _ in range(LAYERS):
        layer: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        if net == "residual MLP":
            layer = Residual(nn.Sequential(nn.LayerNorm(64), layer, nn.Linear(64, 64)))
        layers.append(Losable(layer))
    begin = [nn.Flatten(), nn.Linear(784, 64), nn.ReLU()]
    return nn.Sequential(*begin, *layers, nn.Linear(64, 10)), layers


def train(cell: Cell, model: nn.Module) -> None:
    """AdamW, the rate of 2e-3 going down to nothing along a cosine."""
    steps, batch = STEPS[cell.net], BATCH[cell.net]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    contexts = Contexts(Data.text[0])
    model.train()
    for _ in range(steps):
        if cell.net == "char-GPT":
            at = torch.randint(len(contexts), (batch,))
            loss = loss_of(model, torch.stack([contexts[int(each)] for each in at]))
        else:
            at = torch.randint(len(Data.mnist.images), (batch,))
            loss = nn.functional.cross_entropy(model(Data.mnist.images[at]), Data.mnist.labels[at])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()


def result(net: str, model: nn.Module) -> float:
    """Nats a character of the validation text, or the percentage of test images that are right."""
    model.eval()
    with torch.no_grad():
        if net == "char-GPT":
            return float(loss_of(model, Data.text[1]))
        answers = model(Data.mnist.test_images[:TESTED]).argmax(1)
        return 100 * float((answers == Data.mnist.test_labels[:TESTED]).float().mean())


def result_without(
    cell: Cell, model: nn.Module, layers: Sequence[Losable], lost: Collection[int], how: str
) -> float:
    for at in lost:
        layers[at].state = how
    torch.manual_seed(cell.seed)  # of the noise
    found = result(cell.net, model)
    for at in lost:
        layers[at].state = ""
    return found


def sets_of(count: int) -> list[list[int]]:
    """Return the sets of ``count`` layers."""
    drawn = random.Random(count)
    return [sorted(drawn.sample(range(LAYERS), count)) for _ in range(SETS)]


def play(cell: Cell) -> Row:
    """Trains the net, and tries it without each layer and without several."""
    torch.manual_seed(cell.seed)
    model, layers = make(cell.net)
    for layer in layers:
        layer.drop = cell.drop
    train(cell, model)
    row: Row = {"whole": result(cell.net, model)}
    for how in HOW:
        row[how] = [result_without(cell, model, layers, [at], how) for at in range(LAYERS)]
        for count in SEVERAL:
            values = [result_without(cell, model, layers, lost, how) for lost in sets_of(count)]
            row[f"{count} {how}"] = statistics.fmean(values)
    return row


# --- the table ------------------------------------------------------------------------------------


def mean_and_error(net: str, values: Sequence[float]) -> str:
    """Return the mean over the seeds and its standard error."""
    places = 2 if net == "char-GPT" else 1
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.{places}f} ± {error:.{places}f}"


def columns(net: str, drops: Sequence[float], of_drop: Mapping[float, Sequence[Row]]) -> list[str]:
    """A row of the table for each thing that is lost."""
    lost: list[tuple[str, Any]] = [
        ("nothing", lambda row: row["whole"]),
        ("the first layer dropped", lambda row: row["dropped"][0]),
        ("another one dropped", lambda row: statistics.fmean(row["dropped"][1:])),
        *(
            (f"{count} layers dropped", lambda row, n=count: row[f"{n} dropped"])
            for count in SEVERAL
        ),
        ("one layer zeroed", lambda row: statistics.fmean(row["zeroed"])),
        ("one layer noisy", lambda row: statistics.fmean(row["noisy"])),
        (f"{SEVERAL[-1]} layers noisy", lambda row: row[f"{SEVERAL[-1]} noisy"]),
    ]
    return [
        f"| {NETS[net]} | {what} | "
        + " | ".join(mean_and_error(net, [of(row) for row in of_drop[drop]]) for drop in drops)
        + " |"
        for what, of in lost
    ]


def table(cells: Sequence[Cell], rows: Mapping[str, Row]) -> list[str]:
    drops = sorted({cell.drop for cell in cells})
    heads = [f"layers dropped at {drop:g}" if drop else "usual training" for drop in drops]
    lines = [f"| net | lost | {' | '.join(heads)} |", "|---|---|" + "---|" * len(drops)]
    for net in NETS:
        of_drop = {
            drop: [
                rows[name_of(cell)]
                for cell in cells
                if (cell.net, cell.drop) == (net, drop) and name_of(cell) in rows
            ]
            for drop in drops
        }
        if all(of_drop.values()):
            lines += columns(net, drops, of_drop)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, help="a file of plain text")
    parser.add_argument("--drop", type=float, nargs="+", default=[0.0, 0.2])
    add_arguments(parser, Path("runs/lost_layers.jsonl"), jobs=1, seeds=5)
    options = parser.parse_args()
    cells = [
        Cell(net, drop, seed)
        for seed in range(options.seeds)
        for net in NETS
        for drop in options.drop
    ]
    found = rows_done(cells, play, options, prepare, str(options.text.resolve()))
    rows = {json.dumps(row["cell"], sort_keys=True): row for row in found}
    text = "\n".join(table(cells, rows))
    if options.write is not None:
        put_between(options.write, "lost layers", text)
    print(json.dumps(found) if options.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
