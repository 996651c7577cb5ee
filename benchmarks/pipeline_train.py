"""Trains one of three models under ``gossip run --plan``; started by ``pipeline_goodput.py`` and
``pipeline_plans.py``.

``char``: a transformer over characters, 8 blocks of 128. ``timed``: ten layers that take a stated
time and compute nothing, in place of devices. ``unequal``: ten such layers, with a speed of its own
for each peer (``--speeds``). A function of each name is for ``gossip plan profile``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset

import gossip
from gossip.testing import TimedLayer
from gossip_pipelines.planning import LayerMaker, make_layer
from gossip_pipelines.stages import Loss

BLOCKS, WIDTH, HEADS, CONTEXT, CHARACTERS = 8, 128, 4, 64, 256
FORWARD_EACH_S = 0.010  # of a timed layer, for each sample
UNEQUAL_LAYERS, UNEQUAL_WIDTH, UNEQUAL_PARAMETERS = 10, 32768, 40_000
UNEQUAL_S, UNEQUAL_EACH_S = 0.06, 0.06  # forward, at speed 1: of any batch, and of each sample
SAMPLES = 500  # of the data set, where peers share one
TEXT = Path(__file__).resolve().parent.parent / "docs"


class Embedded(nn.Module):
    """Characters of a text, (n, CONTEXT), to (n, CONTEXT, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, codes: Tensor) -> Tensor:
        places = torch.arange(codes.shape[1], device=codes.device)
        found: Tensor = self.letter(codes) + self.place(places)
        return found


class Block(nn.Module):
    """Causal attention and a small net: (n, CONTEXT, WIDTH) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        asked = self.asked(self.before(x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = asked.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = x + self.out(seen.transpose(1, 2).flatten(2))
        added: Tensor = self.net(self.behind(mixed))
        return mixed + added


class Scores(nn.Sequential):
    """(n, CONTEXT, WIDTH) to a score of each byte as the following one."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS))


def char() -> tuple[list[LayerMaker], Tensor]:
    return [Embedded, *[Block] * BLOCKS, Scores], torch.zeros(2, CONTEXT, dtype=torch.long)


def timed() -> tuple[list[LayerMaker], Tensor]:
    layer = functools.partial(TimedLayer, 0.0, FORWARD_EACH_S)
    return [layer] * 9 + [lambda: nn.Sequential(layer(), nn.Linear(4, 4))], torch.zeros(2, 4)


def unequal(speed: float = 1.0) -> tuple[list[LayerMaker], Tensor]:
    layer = functools.partial(
        TimedLayer, UNEQUAL_S, UNEQUAL_EACH_S, parameters=UNEQUAL_PARAMETERS, speed=speed
    )
    return [layer] * UNEQUAL_LAYERS, torch.zeros(2, UNEQUAL_WIDTH)


@functools.cache
def text() -> Tensor:
    """This project's documentation."""
    data = b"".join(path.read_bytes() for path in sorted(TEXT.glob("*.md")))
    return torch.tensor(list(data))


def char_batch(step: int, rows: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    begins = torch.randint(len(text()) - CONTEXT, (rows, 1), generator=draw)
    found = text()[begins + torch.arange(CONTEXT + 1)]
    return found[:, :-1], found[:, 1:]


def timed_batch(step: int, rows: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(rows, 4, generator=draw), torch.zeros(rows, 4)


def unequal_batch(step: int, rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, UNEQUAL_WIDTH), torch.zeros(rows, UNEQUAL_WIDTH)


def char_loss(scores: Tensor, following: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, 1), following.flatten())


BATCHES = {"char": char_batch, "timed": timed_batch, "unequal": unequal_batch}
LAYERS = {"char": char, "timed": timed, "unequal": unequal}
LOSSES: dict[str, Loss] = {"char": char_loss, "timed": mse_loss, "unequal": mse_loss}
RATE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(LAYERS))
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="samples of a step")
    parser.add_argument(
        "--alone", type=Path, help="train in this process, without gossip; where losses go"
    )
    parser.add_argument("--speeds", help="of the peers, in their order: 1,2,4", default="")
    parser.add_argument(
        "--whole", action="store_true", help="all layers on each peer, without a plan"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        train_alone(options)
        return
    peer = gossip.init()
    if options.speeds:
        made, samples = unequal(float(options.speeds.split(",")[peer.id]))
    else:
        made, samples = LAYERS[options.model]()
    if options.whole:
        train_whole(peer, made, options)
        return
    pipe = peer.pipeline(
        made,
        samples,
        loss=LOSSES[options.model],
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=RATE),
    )
    for step in peer.steps(options.steps):
        loss = pipe.step(*BATCHES[options.model](step, options.rows))
        if loss is not None:  # in the last stage
            peer.log(loss=loss, step=step)


def train_whole(
    peer: gossip.Session, made: Sequence[nn.Module | LayerMaker], options: argparse.Namespace
) -> None:
    """Data-parallel training. ``--rows``: of one peer's part of a step, at first."""
    model: nn.Module = nn.Sequential(*[make_layer(layer, at, 0) for at, layer in enumerate(made)])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    model, optimizer = peer.prepare(model, optimizer)
    data = TensorDataset(*BATCHES[options.model](0, SAMPLES))
    loader = peer.shard(DataLoader(data, batch_size=options.rows))
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for _, (x, y) in zip(peer.steps(options.steps), batches, strict=False):
        optimizer.zero_grad()
        LOSSES[options.model](model(x), y).backward()
        optimizer.step()


def train_alone(options: argparse.Namespace) -> None:
    """Train as a script for one machine would."""
    made, _ = LAYERS[options.model]()
    model = nn.Sequential(*[make_layer(layer, at, 0) for at, layer in enumerate(made)])
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=RATE), []
    for step in range(options.steps):
        x, y = BATCHES[options.model](step, options.rows)
        optimizer.zero_grad()
        loss = LOSSES[options.model](model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    options.alone.write_text(json.dumps(losses) + "\n")


if __name__ == "__main__":
    main()
