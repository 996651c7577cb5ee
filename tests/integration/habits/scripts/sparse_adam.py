"""SparseAdam over an embedding with sparse gradients."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = torch.nn.Embedding(8, 1, sparse=True)
optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x[:, 0].abs().long().clamp(max=7)), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
