"""Lost neurons and weights of a trained net, with and without recovery, beside a lost layer.

    python benchmarks/lost_parts.py --data mnist.npz

Each net has six equal layers, and only numbers of these are lost. A lost *layer* loses all rows of
its matrices, with their biases; lost *neurons* are some of these rows, drawn from all layers; lost
*weights* are single numbers of the matrices. They become zeros. Recovery draws lost numbers anew,
as at the start of the training, and trains the whole net for a tenth of the steps before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from gossip_lab.data_sets import TrainingData, load
from gossip_lab.estimates import Estimate
from gossip_lab.pages import markdown_table

LAYERS, TESTED = 6, 2000
SHARES = (1 / LAYERS, 1 / 3, 1 / 2)
RECOVERY = 0.1
"""Steps of the recovery, as a share of those of the training."""
Masks = dict[str, Tensor]
"""Name of a parameter -> its lost numbers, as ones."""


class Residual(nn.Sequential):
    """Layers whose input is added to their output."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs
        for layer in self:
            outputs = layer(outputs)
        return inputs + outputs


def make_net(net: str) -> nn.Sequential:
    """Return a net of images. Its layers are those of ``layers``."""
    if net == "plain CNN":
        begin = [nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 5, stride=4), nn.ReLU()]
        layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(LAYERS)]
        end = nn.Sequential(nn.Flatten(), nn.Linear(16 * 36, 10))
    else:
        begin, end = [nn.Linear(784, 64), nn.ReLU()], nn.Sequential(nn.Linear(64, 10))
        layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(LAYERS)]
        if net == "residual MLP":
            layers = [Residual(nn.LayerNorm(64), *each, nn.Linear(64, 64)) for each in layers]
    model = nn.Sequential()
    model.add_module("begin", nn.Sequential(*begin))
    model.add_module("layers", nn.Sequential(*layers))
    model.add_module("end", end)
    return model


class Task:
    """A net and its data.

    Attributes:
        name: Name in the table.
    """

    def __init__(self, name: str, steps: int, data: TrainingData) -> None:
        self.name, self._steps, self._data = name, steps, data

    def make(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make_net(self.name)

    def train(self, model: nn.Module, share: float = 1.0) -> None:
        """Train with AdamW at 2e-3, down to nothing along a cosine, a share of the steps."""
        steps, data = round(self._steps * share), self._data
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        model.train()
        for _ in range(steps):
            at = torch.randint(len(data.labels), (64,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.images[at]), data.labels[at]).backward()
            optimizer.step()
            scheduler.step()

    def measure(self, model: nn.Module) -> float:
        """Return the percentage of test images that are right."""
        model.eval()
        with torch.no_grad():
            found = model(self._data.test_images[:TESTED]).argmax(1)
        return 100 * float((found == self._data.test_labels[:TESTED]).float().mean())


def losses(model: nn.Module) -> Iterator[tuple[str, Masks]]:
    """Yield the rows of the table, and what each loses: of layers, each of the six."""
    names = [name for name, _ in model.named_parameters() if name.startswith("layers.")]
    matrices = {name: model.get_parameter(name) for name in names}
    matrices = {name: value for name, value in matrices.items() if value.dim() > 1}

    def lose_rows(shares: Mapping[str, float]) -> Masks:
        found = {}
        for name, value in matrices.items():
            lost = (torch.rand(len(value)) < shares[name]).float()
            found[name] = lost.view(-1, *[1] * (value.dim() - 1)).expand_as(value)
            found[name.removesuffix("weight") + "bias"] = lost
        return found

    yield "nothing", {}
    for layer in range(LAYERS):
        lost = {name: float(name.startswith(f"layers.{layer}.")) for name in matrices}
        yield "one layer", lose_rows(lost)
    for share in SHARES:
        yield f"{share:.0%} of the neurons", lose_rows(dict.fromkeys(matrices, share))
    for share in SHARES:
        masks = {name: (torch.rand_like(value) < share).float() for name, value in matrices.items()}
        yield f"{share:.0%} of the weights", masks


def put(model: nn.Module, lost: Masks, source: nn.Module | None) -> nn.Module:
    """Return a copy of the model with lost numbers from ``source``, or zeros."""
    found = deepcopy(model)
    with torch.no_grad():
        for name, mask in lost.items():
            value = found.get_parameter(name)
            value[mask > 0] = 0.0 if source is None else source.get_parameter(name)[mask > 0]
    return found


def play(task: Task, seed: int) -> dict[str, tuple[float, float, float]]:
    """Train a net. Return the means of what is left with zeros, with numbers drawn anew, and after
    the recovery, by row."""
    model = task.make(seed)
    task.train(model)
    fresh = task.make(seed + 1000)
    torch.manual_seed(seed)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row, lost in losses(model):
        anew = put(model, lost, fresh)
        before = task.measure(put(model, lost, None)), task.measure(anew)
        task.train(anew, RECOVERY)
        found.setdefault(row, []).append((*before, task.measure(anew)))
    return {
        row: (statistics.fmean(a), statistics.fmean(b), statistics.fmean(c))
        for row, values in found.items()
        for a, b, c in [zip(*values, strict=True)]
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    images, rows = load(options.data), []
    tasks = [
        Task("residual MLP", 1000, images),
        Task("plain MLP", 1000, images),
        Task("plain CNN", 500, images),
    ]
    for task in tasks:
        found = [play(task, seed) for seed in range(options.seeds)]
        for row in found[0]:
            texts = []
            for values in zip(*[each[row] for each in found], strict=True):
                estimate = Estimate(values)
                texts.append(f"{estimate.mean:.2f} ± {estimate.interval[1] - estimate.mean:.2f}")
            rows.append((task.name, row, *texts))
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    columns = ("net", "lost", "zeros", "drawn anew", "after recovery")
    print("\n".join(markdown_table(columns, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
