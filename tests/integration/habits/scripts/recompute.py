"""Activation checkpointing: the forward pass is computed again."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import gossip

model = habit.model()
model.insert(2, torch.nn.Dropout(0.3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(checkpoint(model, x, use_reentrant=False), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
