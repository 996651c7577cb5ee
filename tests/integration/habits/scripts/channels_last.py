"""A convolution in ``channels_last`` memory."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = torch.nn.Sequential(
    torch.nn.Conv2d(2, 4, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4, 1)
).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x.view(-1, 2, 2, 2)), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
