"""ReduceLROnPlateau on the loss of this peer's batch."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
peer.keep(schedule=schedule)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(loss)
        habit.pause(peer)
habit.done(peer, model)
