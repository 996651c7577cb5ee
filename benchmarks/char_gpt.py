"""A transformer over characters under ``gossip run``: 4 layers, 128 wide, contexts of 64, AdamW.

Peer 0 writes the validation loss of the model that all share to ``--result``. Started by
``benchmarks/local_steps.py``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gossip

CONTEXT, WIDTH, LAYERS, HEADS = 64, 128, 4, 4
VALIDATION = 0.1  # of the text, its end
VALIDATED = 64  # contexts, the same for all runs
WARM_UP = 0.1  # of the steps; a cosine down to a tenth of the rate follows


class CharacterModel(nn.Module):
    """Predicts each next character: 0.8 million parameters, unless another size is asked for."""

    def __init__(self, characters: int, width: int = WIDTH, layers: int = LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.layers(self.embedding(tokens) + self.position, mask=self.mask)
        answers: Tensor = self.head(self.norm(found))
        return answers


class Contexts(torch.utils.data.Dataset[Tensor]):
    """Pieces of the text, one after the other, with the character that follows each."""

    def __init__(self, text: Tensor) -> None:
        self.pieces = text[: (len(text) - 1) // CONTEXT * CONTEXT + 1]

    def __len__(self) -> int:
        return (len(self.pieces) - 1) // CONTEXT

    def __getitem__(self, at: int) -> Tensor:
        return self.pieces[at * CONTEXT : (at + 1) * CONTEXT + 1]


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Nats a character, of the mean over the batch ``(samples, context + 1)``."""
    answers = model(batch[:, :-1])
    return cross_entropy(answers.flatten(0, 1), batch[:, 1:].flatten())


def read_text(path: Path) -> tuple[Tensor, Tensor, int]:
    """The characters of a text by number, ``VALIDATED`` contexts of its end, and how many kinds of
    characters there are. The first is without that end."""
    characters = path.read_bytes()
    known = sorted(set(characters))
    text = torch.tensor([known.index(each) for each in characters])
    end = int(len(text) * (1 - VALIDATION))
    held_out = Contexts(text[end:])
    apart = len(held_out) // VALIDATED
    validation = torch.stack([held_out[at * apart] for at in range(VALIDATED)])
    return text[:end], validation, len(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of a peer by itself")
    parser.add_argument("--batch", type=int, default=8, help="contexts of a peer in a step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()

    text, validation, known = read_text(options.text)
    peer = gossip.init()
    model = CharacterModel(known)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1)
    model, optimizer = peer.prepare(model, optimizer)
    warm_up = max(1, int(WARM_UP * options.steps))
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm_up, total_iters=warm_up),
            torch.optim.lr_scheduler.CosineAnnealingLR(
                optimizer, options.steps - warm_up, options.lr / 10
            ),
        ],
        [warm_up],
    )
    peer.keep(scheduler=scheduler)
    loader = peer.shard(Contexts(text), batch_size=options.batch)
    batches = (batch for _ in iter(int, 1) for batch in loader)
    for _ in peer.steps(options.steps):
        loss = loss_of(model, next(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if peer.id == 0:
        with torch.no_grad():
            found = {"validation": float(loss_of(model, validation)), "train": float(loss)}
        options.result.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
