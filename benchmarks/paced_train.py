"""A small model under ``gossip run``, with local steps that each last a stated time.

It learns which of 32 tokens follows two others. Tokens are drawn from a source with a seed, so no
loss can stay below the entropy of that source for long. Each peer writes the loss of the shared
model, on samples that are not trained on, to ``losses-PEER.jsonl`` in the run's folder. The run is
over at the round that the file ``until`` there names. Started by ``storm.py``,
``slow_links.py`` and ``few_peers.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOKENS, WIDTH = 32, 32
SAMPLES, HELD_OUT = 200_000, 2_000
FRESH = math.log(TOKENS)
"""Nats: the loss of who knows nothing. That of fresh weights is a little higher."""


def source(seed: int = 0) -> tuple[Any, Any, float]:
    """Samples to train on, two tokens and the next one each, others to test on, and the entropy of
    the next token, in nats."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    first, second = 1.5 * torch.randn(2, TOKENS, TOKENS, generator=draw)
    before = torch.randint(TOKENS, (SAMPLES + HELD_OUT, 2), generator=draw)
    chances = torch.softmax(first[:, None] + second[None], dim=2).flatten(0, 1)
    entropy = float(-(chances * chances.log()).sum(dim=1).mean())
    # by the inverse of the distribution: a peer that starts again draws them all in a moment
    of_pair = before[:, 0] * TOKENS + before[:, 1]
    upto = (chances.cumsum(dim=1) + torch.arange(TOKENS**2)[:, None]).flatten()
    lots = of_pair + torch.rand(len(before), generator=draw)
    follows = (torch.searchsorted(upto, lots) - TOKENS * of_pair).clamp(0, TOKENS - 1)
    rows = torch.cat([before, follows[:, None]], dim=1)
    return rows[:SAMPLES], rows[SAMPLES:], entropy


def model_of(hidden: int, layers: int = 0) -> Any:
    """Return a model of 97 parameters for each hidden unit, and 1,056 others. Each of ``layers``
    more layers in between has ``hidden * (hidden + 1)``."""
    from torch import nn

    deeper = [part for _ in range(layers) for part in (nn.Linear(hidden, hidden), nn.ReLU())]
    return nn.Sequential(
        nn.Embedding(TOKENS, WIDTH),
        nn.Flatten(),
        nn.Linear(2 * WIDTH, hidden),
        nn.ReLU(),
        *deeper,
        nn.Linear(hidden, TOKENS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.04, help="seconds that a step sleeps")
    parser.add_argument("--batch", type=int, default=8, help="samples of a peer in a step")
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--layers", type=int, default=0, help="more hidden layers")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--set-up", type=float, default=0.0, help="seconds until it has a model")
    parser.add_argument("--told-every", type=int, default=10, help="rounds between two losses")
    options = parser.parse_args()

    import torch
    from torch.nn.functional import cross_entropy

    import gossip

    imported = time.monotonic()
    peer = gossip.init()
    rows, held_out, _ = source()
    time.sleep(options.set_up)
    torch.manual_seed(0)
    model = model_of(options.hidden, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(torch.utils.data.DataLoader(rows, batch_size=options.batch, shuffle=True))
    assert peer.run_dir is not None

    def loss_of(batch: Any) -> Any:
        return cross_entropy(model(batch[:, :2]), batch[:, 2])

    until, losses = peer.run_dir / "until", peer.run_dir / f"losses-{peer.id}.jsonl"
    steps, computed_s = 0, 0.0
    with losses.open("a", buffering=1) as told:
        told.write(json.dumps({"round": peer.round, "imported": imported}) + "\n")
        for batch in repeated(loader):
            began = time.monotonic()
            optimizer.zero_grad()
            loss_of(batch).backward()
            time.sleep(options.pause)
            steps, computed_at = steps + 1, time.monotonic()
            optimizer.step()
            local = peer.step % options.local_steps > 0  # no round was behind it
            computed_s += (time.monotonic() if local else computed_at) - began
            if local:
                continue
            if peer.round % options.told_every == 0:
                with torch.no_grad():
                    loss = float(loss_of(held_out))
                told.write(
                    json.dumps({"round": peer.round, "t": time.monotonic(), "loss": loss}) + "\n"
                )
            if is_over(until, peer.round):
                break
        told.write(json.dumps({"steps": steps, "computed_s": computed_s}) + "\n")
    peer.close()


def repeated(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def is_over(until: Path, round_id: int) -> bool:
    return until.exists() and round_id >= int(until.read_text())


if __name__ == "__main__":
    main()
