"""Weight norm by parametrization."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.nn.utils.parametrizations import weight_norm

import gossip

model = habit.model()
weight_norm(model[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
