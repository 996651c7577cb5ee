"""A DistributedDataParallel script before its conversion; docs/from_ddp.md shows it next to
from_ddp.py.

torchrun --nproc-per-node 4 examples/ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    train = TensorDataset(x[:1440], y[:1440])
    test_x, test_y = x[1440 + rank :: world_size], y[1440 + rank :: world_size]

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=options.epochs * len(loader)
    )

    begin = 0
    if os.path.exists("ddp.pt"):
        state = torch.load("ddp.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        begin = state["epoch"] + 1

    for epoch in range(begin, options.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()

        with torch.no_grad():
            accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean()
        dist.all_reduce(accuracy)
        accuracy /= world_size
        if rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy.item():.4f}")
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, "ddp.pt")
        dist.barrier()

    del model  # it may hold the last reference to the group; torch 2.13 can deadlock as that ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
