"""Two optimizers of one loss, each zeroed right after its own step."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = [
    torch.optim.SGD(model[0].parameters(), lr=0.05),
    torch.optim.Adam(model[2].parameters(), lr=1e-2),
]
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
