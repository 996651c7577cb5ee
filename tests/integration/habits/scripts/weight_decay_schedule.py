"""The loop sets ``weight_decay`` from the step of the run, as DINO does."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.04 + 0.01 * peer.step
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
