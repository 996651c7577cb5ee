"""A parameter gets a gradient in every second step only."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
model.spare = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        factor = model.spare if peer.step % 2 else 1.0
        optimizer.zero_grad()
        mse_loss(factor * model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
