"""Workloads for the comparison of exchanges: models of several sizes, on random data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

VECTOR = "vector"


class FlatVector(nn.Module):
    """A model with one parameter of ``numbers`` elements and no computation."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(numbers))


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, and the function that generates a batch of samples for it."""

    model: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    about: str


class CharacterModel(nn.Module):
    """A character-level transformer with 4 layers, embeddings of size 128 and contexts of 64
    characters."""

    def __init__(self, characters: int = 65, width: int = 128, context: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        mask = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.layers(self.embedding(tokens) + self.position, mask=self.mask)
        answers: Tensor = self.head(found[:, -1])
        return answers


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, behind in pairwise(widths):
        layers += [nn.Linear(before, behind), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 330),
        nn.ReLU(),
        nn.Linear(330, 10),
    )


def _rows(width: int) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    def draw(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(10, (batch,), generator=generator)
        return torch.randn(batch, width, generator=generator), labels

    return draw


def _images(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    images = torch.randn(batch, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (batch,), generator=generator)


def _texts(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(65, (batch, 64), generator=generator)
    return tokens, torch.randint(65, (batch,), generator=generator)


WORKLOADS: Mapping[str, Workload] = {
    "digits-mlp": Workload(lambda: _mlp(64, 128, 64, 10), _rows(64), "17,226 parameters"),
    "cnn": Workload(_cnn, _images, "1.06 million parameters, images of 28 x 28"),
    "wide-mlp": Workload(
        lambda: _mlp(784, 4096, 4096, 1200, 10), _rows(784), "24.9 million parameters"
    ),
    "char-gpt": Workload(CharacterModel, _texts, "0.8 million parameters, contexts of 64"),
}
"""Name for ``gossip bench step --model`` -> the workload."""
