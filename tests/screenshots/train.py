"""What the pictures of the terminal show: a small network learns the digits, with its loss logged
and checkpoints saved."""

import sys

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import gossip

STEPS = 1200

peer = gossip.init()
torch.manual_seed(0)
bunch = load_digits()
images = torch.tensor(bunch.data, dtype=torch.float32) / 16
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
loader = peer.shard(TensorDataset(images, torch.tensor(bunch.target)), batch_size=32)
batches = iter(loader)
for _ in peer.steps(int(sys.argv[1]) if sys.argv[1:] else STEPS, save="ckpt", every=200):
    try:
        x, y = next(batches)
    except StopIteration:  # the next epoch
        batches = iter(loader)
        x, y = next(batches)
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    peer.log(loss=loss.item())
    optimizer.step()
