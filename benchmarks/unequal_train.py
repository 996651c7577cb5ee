"""The digits MLP under ``gossip run`` with local steps that each last some milliseconds.

Peer 0 writes the test loss of the shared model behind each round to ``--result``. Started by
``benchmarks/unequal_speeds.py``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from digits_train import digits, mlp
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset

import gossip

REPEATED = 32
"""Repetitions of the data, so that no epoch ends within a run: the steps of the round that ends an
epoch have smaller batches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--local-steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8, help="samples of a peer in a step")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds that a step sleeps")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()

    data, test_x, test_y = digits()
    peer = gossip.init()
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    model, optimizer = peer.prepare(model, optimizer)
    repeated = Subset(data, list(range(len(data))) * REPEATED)
    loader = peer.shard(DataLoader(repeated, batch_size=options.batch))
    losses: list[tuple[int, float]] = []
    for _ in peer.epochs(10**6):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            time.sleep(options.pause)
            optimizer.step()
            if peer.id == 0 and peer.step % options.local_steps == 0:
                with torch.no_grad():
                    losses.append((peer.round, float(cross_entropy(model(test_x), test_y))))
        if peer.round >= options.rounds:
            break
    peer.close()
    if peer.id == 0:
        options.result.write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
