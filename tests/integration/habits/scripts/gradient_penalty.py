"""The loss has the norm of a gradient (``create_graph=True``)."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        x.requires_grad_(True)
        out = model(x)
        slope = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
        optimizer.zero_grad()
        (mse_loss(out, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
