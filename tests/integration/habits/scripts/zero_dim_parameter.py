"""A parameter without dimensions, such as a learned temperature."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
model.scale = torch.nn.Parameter(torch.tensor(1.0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x) * model.scale, y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
