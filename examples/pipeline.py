"""A transformer over characters with its layers divided among peers: no peer trains the whole
model. Needs the package gossip-pipelines.

gossip plan profile examples/pipeline.py:layers --name lab1        # on each machine, with its name
gossip plan lab1.toml lab2.toml lab3.toml --batch 32 --mbit 1000   # writes plan.toml
gossip run --plan plan.toml examples/pipeline.py
python examples/pipeline.py                                        # the same with one process
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import gossip

LETTERS, LENGTH, WIDTH, BATCH = 64, 32, 64, 32


class Embedded(nn.Module):
    """Embedding of characters and positions: (n, LENGTH) codes to (n, LENGTH, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, codes: Tensor) -> Tensor:
        return self.letter(codes) + self.place(torch.arange(codes.shape[1], device=codes.device))


class Block(nn.Module):
    """Attention to the previous characters, then a small network. Input and output have the shape
    (n, LENGTH, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.asked(self.before(x)).chunk(3, dim=-1)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen)
        return x + self.net(self.behind(x))


class Scores(nn.Sequential):
    """Scores of each letter as the next letter: (n, LENGTH, WIDTH) to (n, LENGTH, LETTERS)."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS))


def layers() -> tuple[list[Callable[[], nn.Module]], Tensor]:
    """Return functions that make the layers, and some samples.

    ``gossip plan profile`` times these layers, and the script trains them. Each process holds only
    the layers of its stage.
    """
    return [Embedded, *[Block] * 6, Scores], torch.zeros(4, LENGTH, dtype=torch.long)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the samples of a step, codes that increase by 1 to 5, the same on every peer."""
    draw = torch.Generator().manual_seed(step)
    first = torch.randint(LETTERS, (BATCH, 1), generator=draw)
    pace = torch.randint(1, 6, (BATCH, 1), generator=draw)
    codes = (first + pace * torch.arange(LENGTH + 1)) % LETTERS
    return codes[:, :-1], codes[:, 1:]


def loss_of(scores: Tensor, following: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    peer = gossip.init()
    model, samples = layers()
    pipe = peer.pipeline(
        model,
        samples,
        loss=loss_of,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    )
    for step in peer.steps(options.steps):
        loss = pipe.step(*batch(step))
        if loss is not None:  # it is None in the other stages
            peer.log(loss=loss)
            if peer.is_main and step % 20 == 0:
                print(f"step {step}: loss {loss:.3f}")
    if pipe.is_last and peer.is_main:
        print(f"trained: this peer is in the last of {pipe.stages} stages")


if __name__ == "__main__":
    main()
