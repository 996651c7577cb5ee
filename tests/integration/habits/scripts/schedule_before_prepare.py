"""StepLR that is created before ``prepare``, and stepped once an epoch."""

import habit
import torch
from torch.optim import lr_scheduler

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
peer, model, optimizer = habit.prepared(model, optimizer)
peer.keep(schedule=schedule)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        habit.step(model, optimizer, x, y)
        habit.pause(peer)
    schedule.step()
habit.done(peer, model)
