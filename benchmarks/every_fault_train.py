"""A small network learns the digits under ``gossip run``, and peers may lie without a plan.

``python benchmarks/every_fault.py`` starts it. The peers in the variable ``DRAWN_LIARS`` turn their
gradients round and make them ten times as long, as a script with a mistake would: nothing tells
gossip of it.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from digits_train import digits, mlp, repeated
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import gossip

PAUSE_S = 0.02
"""Seconds that each step sleeps, so that each of eight peers on one machine leaves some of it to
the others."""


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps, folder = int(sys.argv[1]), sys.argv[2]
    data, _, _ = digits()
    model = mlp()
    peer = gossip.init()
    factor = -10.0 if str(peer.id) in os.environ.get("DRAWN_LIARS", "").split(",") else 1.0
    model, optimizer = peer.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    )
    loader = peer.shard(DataLoader(data, batch_size=16, shuffle=True))
    batches = repeated(loader)
    for _ in peer.steps(steps, save=folder, every=100):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        (factor * loss).backward()
        time.sleep(PAUSE_S)
        peer.log(loss=loss.item())
        optimizer.step()


if __name__ == "__main__":
    main()
