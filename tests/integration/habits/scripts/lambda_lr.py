"""LambdaLR: warm-up and cosine, created after ``prepare``."""

import habit
import torch
from torch.optim import lr_scheduler

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
schedule = lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10) / (1 + 0.02 * s))
peer.keep(schedule=schedule)
habit.train(peer, model, optimizer, schedule=schedule)
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
