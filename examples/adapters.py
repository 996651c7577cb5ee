"""Adapters on a frozen base (LoRA): peers exchange a few thousand parameters instead of all of
them.

gossip run -n 4 examples/adapters.py          # pip install scikit-learn

The base is trained on digits, and the adapters learn rotated digits.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gossip


class Adapted(nn.Module):
    """A frozen linear layer plus a trained product of two narrow matrices
    (Hu et al. 2021, arXiv:2106.09685). Its initial output is that of the frozen layer."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def learnt_base(x: Tensor, y: Tensor) -> nn.Sequential:
    """Train a network on the digits. The result is the same on every peer, because the initial
    weights are the same. A real script would load it from a file."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model.append(nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rank", type=int, default=4)
    options = parser.parse_args()

    digits = load_digits()
    upright = torch.tensor(digits.images, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = learnt_base(upright[:1440].flatten(1), y[:1440])
    x = upright.transpose(1, 2).flatten(1)

    @torch.no_grad()
    def accuracy() -> float:
        return (model(x[1440:]).argmax(1) == y[1440:]).float().mean().item()

    before = accuracy()
    for at in (0, 2, 4):
        model[at] = Adapted(model[at], options.rank)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)

    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(DataLoader(TensorDataset(x[:1440], y[:1440]), batch_size=32, shuffle=True))
    for _ in peer.epochs(options.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            peer.log(loss=loss.item())
            optimizer.step()

    if peer.is_main:
        sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
        exchanged, whole = sum(size for size, learns in sizes if learns), sum(s for s, _ in sizes)
        print(f"{exchanged} of {whole} parameters exchanged; accuracy before {before:.4f}")
        print(f"accuracy {accuracy():.4f}")


if __name__ == "__main__":
    main()
