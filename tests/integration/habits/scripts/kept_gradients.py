"""The script zeroes gradients that it keeps in a list, in a model of 295,000 parameters."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model(width=29_500)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
for p in model.parameters():
    p.grad = torch.zeros_like(p)
kept = [p.grad for p in model.parameters()]
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        for gradient in kept:
            gradient.zero_()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
