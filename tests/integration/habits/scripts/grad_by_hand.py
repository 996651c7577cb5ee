"""``autograd.grad`` writes into gradients that the script has made."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
for p in model.parameters():
    p.grad = torch.zeros_like(p)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        gradients = torch.autograd.grad(mse_loss(model(x), y), list(model.parameters()))
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad.copy_(gradient)
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
