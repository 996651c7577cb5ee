"""OneCycleLR over the planned steps, with its momentum."""

import habit
import torch
from torch.optim import lr_scheduler

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2 * len(loader))
peer.keep(schedule=schedule)
habit.train(peer, model, optimizer, loader, schedule=schedule)
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
