"""One optimizer for each parameter, stepped in a loop."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = [torch.optim.Adam([p], lr=1e-2) for p in model.parameters()]
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        mse_loss(model(x), y).backward()
        for each in optimizer:
            each.step()
            each.zero_grad()
        habit.pause(peer)
habit.done(peer, model)
