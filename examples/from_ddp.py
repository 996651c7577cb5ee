"""The script of ddp.py after its conversion; docs/from_ddp.md shows both side by side.

python examples/from_ddp.py                                            # alone: a swarm of one
gossip run -n 4 --resume auto --deterministic examples/from_ddp.py     # the same command resumes
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    peer = gossip.init()
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    train = TensorDataset(x[:1440], y[:1440])
    own = slice(1440 + peer.id, None, peer.initial_peers)
    test_x, test_y = x[own], y[own]

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(DataLoader(train, batch_size=32, shuffle=True))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=options.epochs * len(loader)
    )
    peer.keep(scheduler=scheduler)
    peer.save_every("ckpt", every=len(loader))

    for epoch in peer.epochs(options.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()

        with torch.no_grad():
            accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean()
        means = peer.mean(accuracy=accuracy)
        if peer.is_main:
            print(f"epoch {epoch}: accuracy {means['accuracy']:.4f}")


if __name__ == "__main__":
    main()
