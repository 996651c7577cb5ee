"""A complete training script. Only the lines marked with (gossip) were added to make it
fault-tolerant.

python examples/train.py                          # alone: a swarm of one
gossip run -n 4 examples/train.py --lr 0.1        # four peers on this machine
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossip  # (gossip)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train a small network on the digits of scikit-learn."
    )
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()

    torch.manual_seed(0)
    bunch = load_digits()
    x = torch.tensor(bunch.data, dtype=torch.float32) / 16
    y = torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    train, test = order[:1437], order[1437:]

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=options.batch, shuffle=True)

    peer = gossip.init()  # (gossip)
    model, optimizer = peer.prepare(model, optimizer)  # (gossip)
    loader = peer.shard(loader)  # (gossip)

    loss_fn = nn.CrossEntropyLoss()
    for _ in peer.epochs(options.epochs):  # (gossip) the epoch that the swarm is in
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()

    with torch.no_grad():
        accuracy = (model(x[test]).argmax(dim=1) == y[test]).float().mean().item()
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
