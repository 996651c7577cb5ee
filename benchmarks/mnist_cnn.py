"""A CNN on MNIST under ``gossip run``: two convolutions and two dense layers, AdamW.

The setting of exo gym's example: batches of 256, AdamW at 3e-4. Peer 0 writes the validation loss
of the model that all share to ``--result``. Started by ``benchmarks/local_steps.py``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from mnist import Mnist, read
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gossip

TESTED_AT_ONCE = 500


def make_model() -> nn.Module:
    """431,080 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def validation_loss(model: nn.Module, data: Mnist) -> float:
    """Nats, of the mean over the test images."""
    images, labels = (
        torch.split(every, TESTED_AT_ONCE) for every in (data.test_images, data.test_labels)
    )
    with torch.no_grad():
        losses = [cross_entropy(model(some), of) for some, of in zip(images, labels, strict=True)]
    return float(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of a peer by itself")
    parser.add_argument("--batch", type=int, default=256, help="images of a peer in a step")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()

    data = read(options.mnist)
    peer = gossip.init()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    model, optimizer = peer.prepare(model, optimizer)
    pairs = torch.utils.data.TensorDataset(data.images, data.labels)
    loader = peer.shard(pairs, batch_size=options.batch)
    batches = (batch for _ in iter(int, 1) for batch in loader)
    loss = Tensor()
    for _ in peer.steps(options.steps):
        images, labels = next(batches)
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if peer.id == 0:
        found = {"validation": validation_loss(model, data), "train": float(loss)}
        options.result.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
