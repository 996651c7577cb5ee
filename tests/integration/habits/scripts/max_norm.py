"""An embedding with ``max_norm``, which changes weights in the forward pass."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = torch.nn.Sequential(
    torch.nn.Embedding(12, 4, max_norm=0.5), torch.nn.Flatten(), torch.nn.Linear(8 * 4, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model((2 * x).long() % 12), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
