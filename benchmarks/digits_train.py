"""The digits MLP under ``gossip run``: SGD with momentum, one batch for each process and step.

Peer 0 writes its measurement to ``--result``. ``versions.py`` starts this script.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gossip

# Measured part of a run, as fractions of its steps. It excludes the start of the run, and the time
# in which other peers have already finished.
FROM, TO = 0.2, 0.9


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32, help="samples of a process in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--result", type=Path, required=True, help="file for the measurement of rank 0"
    )
    return parser.parse_args()


def digits() -> tuple[TensorDataset, Tensor, Tensor]:
    """Return 1,437 samples to train on, and the inputs and labels of 360 to test on. Pixels are in
    [0, 1]."""
    bunch = load_digits()
    x = torch.tensor(bunch.data, dtype=torch.float32) / 16.0
    y = torch.tensor(bunch.target, dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return TensorDataset(x[train], y[train]), x[test], y[test]


def mlp() -> nn.Module:
    """Return an MLP of 17,226 parameters."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data, x_test, y_test = digits()
    model: nn.Module = mlp()
    plain = model
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(DataLoader(data, batch_size=options.batch, shuffle=True))
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    loss_of = nn.CrossEntropyLoss()
    first, last = int(options.steps * FROM), int(options.steps * TO)
    started_s = measured_s = 0.0
    for step, (x, y) in enumerate(itertools.islice(batches, options.steps)):
        if step == first:
            started_s = time.perf_counter()
        elif step == last:
            measured_s = time.perf_counter() - started_s
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    with torch.no_grad():
        accuracy = (plain(x_test).argmax(dim=1) == y_test).float().mean().item()
    if peer.id == 0:
        measured = {
            "steps_per_s": (last - first) / measured_s,
            "steps": last - first,
            "accuracy": round(accuracy, 4),
        }
        part = options.result.with_suffix(".part")
        part.write_text(json.dumps(measured))
        os.replace(part, options.result)


if __name__ == "__main__":
    main()
