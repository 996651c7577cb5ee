"""``break`` when the loss of a batch of this peer is small."""

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
        loss = mse_loss(model(x), y)
        if loss < 0.01 and peer.step % 24 > 18:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
