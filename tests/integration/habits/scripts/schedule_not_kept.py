"""A scheduler that is not given to ``peer.keep``."""

import habit
import torch
from torch.optim import lr_scheduler

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
schedule = lr_scheduler.ExponentialLR(optimizer, 0.98)
habit.train(peer, model, optimizer, schedule=schedule)
habit.done(peer, model)
