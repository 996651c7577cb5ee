"""Several losses are propagated one after the other before one step."""

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
        optimizer.zero_grad()
        out = model(x)
        mse_loss(out, y).backward(retain_graph=True)
        (0.1 * out.abs().mean()).backward()
        (1e-3 * sum(p.square().sum() for p in model.parameters())).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
