"""``optimizer.step(closure)``: the closure zeroes and propagates."""

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

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        peer.log(loss=loss)
        habit.pause(peer)
habit.done(peer, model)
