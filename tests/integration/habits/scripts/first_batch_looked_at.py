"""A look at the first batch of each epoch, as to log an image of it."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
looks = 0
for _ in peer.epochs(2, save="ckpt", every=10):
    looks += len(next(iter(loader))[0]) > 0
    for x, y in loader:
        habit.pause(peer)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
habit.done(peer, model)
