"""A copy of a weight is made equal to it after each step: ``peer.each_step``."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
model.insert(2, torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)


@peer.each_step
@torch.no_grad()
def tie():
    model[2].weight.copy_(model[0].weight)


loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
