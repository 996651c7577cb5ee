"""CosineAnnealingWarmRestarts, stepped in every batch."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=7, T_mult=2)
peer.keep(schedule=schedule)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        schedule.step()
        habit.pause(peer)
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
