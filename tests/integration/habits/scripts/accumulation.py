"""Gradients of three batches are accumulated for one step."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader(), accumulate=3)
for _ in peer.epochs(6, save="ckpt", every=10):
    at = 0
    for x, y in loader:
        (mse_loss(model(x), y) / 3).backward()
        at += 1
        if at % 3:
            continue
        optimizer.step()
        optimizer.zero_grad()
        habit.pause(peer)
habit.done(peer, model)
