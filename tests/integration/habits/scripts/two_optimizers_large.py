"""Two optimizers over 295,000 parameters together."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model(width=29_500)
optimizer = [
    torch.optim.Adam(model[0].parameters(), lr=1e-4),
    torch.optim.SGD(model[2].parameters(), lr=1e-3),
]
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        for each in optimizer:
            each.zero_grad()
        mse_loss(model(x), y).backward()
        for each in optimizer:
            each.step()
        habit.pause(peer)
habit.done(peer, model)
