"""A moving average as a copy of the model, updated parameter by parameter."""

from copy import deepcopy

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
average = deepcopy(model).requires_grad_(False)
peer.keep(average=average)


@peer.each_step
def update():
    for kept, p in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(p.detach(), 0.1)


loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model, shared={"average": average})
