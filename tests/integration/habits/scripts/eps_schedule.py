"""The loop sets ``eps`` and ``betas`` from a counter of its own."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
seen = 0
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        seen += 1
        optimizer.param_groups[0]["eps"] = 1e-3 / seen
        optimizer.param_groups[0]["betas"] = (0.9, 1 - 0.1 / seen)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
