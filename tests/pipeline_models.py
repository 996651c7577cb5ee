"""A small transformer over characters as a list of layers, and its data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gossip_pipelines.planning import LayerMaker

LETTERS, LENGTH, WIDTH = 32, 12, 16


class Embedded(nn.Module):
    """Codes, ``(n, LENGTH)``, to ``(n, LENGTH, WIDTH)``."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, codes: Tensor) -> Tensor:
        return self.letter(codes) + self.place(torch.arange(codes.shape[1], device=codes.device))


class Block(nn.Module):
    """Attention to what came before, and a small net: ``(n, LENGTH, WIDTH)`` to the same."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attention(self.before(x)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.out(mixed))
        return x + self.drop(self.net(self.behind(x)))


def char_layers(blocks: int = 4, dropout: float = 0.0) -> list[nn.Module]:
    torch.manual_seed(0)
    middle = [Block(dropout) for _ in range(blocks)]
    return [Embedded(), *middle, char_scores()]


def char_scores() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS))


def char_makers(blocks: int = 4) -> list[nn.Module | LayerMaker]:
    """Functions that make what ``char_layers`` builds."""
    return [Embedded, *[Block] * blocks, char_scores]


def char_loss(scores: Tensor, following: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def char_batch(step: int, samples: int) -> tuple[Tensor, Tensor]:
    """Codes that count on from a random one: ``(samples, LENGTH)`` and the codes that follow."""
    draw = torch.Generator().manual_seed(step)
    first = torch.randint(LETTERS, (samples, 1), generator=draw)
    pace = torch.randint(1, 4, (samples, 1), generator=draw)
    codes = (first + pace * torch.arange(LENGTH + 1)) % LETTERS
    return codes[:, :-1], codes[:, 1:]
