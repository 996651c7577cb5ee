"""The digits MLP under ``gossip run``, as many steps as it is told, each with a pause in it.

Peer 0 writes steps per second and the test accuracy of the shared model to ``--result``. Started by
``benchmarks/overlap.py``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from digits_train import digits, mlp, repeated
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import gossip

FROM = 0.2
"""Share of the steps that pass before the measurement begins."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32, help="samples of a peer in a step")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step sleeps")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()

    data, test_x, test_y = digits()
    peer = gossip.init()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    model, optimizer = peer.prepare(model, optimizer)
    batches = repeated(peer.shard(DataLoader(data, batch_size=options.batch)))
    first, began_s = int(FROM * options.steps), 0.0
    for step in peer.steps(options.steps):
        if step <= first:
            began_s = time.perf_counter()
        x, y = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if options.pause:
            time.sleep(options.pause)
        optimizer.step()
    lasted_s = time.perf_counter() - began_s
    with torch.no_grad():
        accuracy = float((model(test_x).argmax(dim=1) == test_y).float().mean())
    if peer.id == 0:
        found = {"steps_per_s": (options.steps - first) / lasted_s, "accuracy": accuracy}
        options.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
