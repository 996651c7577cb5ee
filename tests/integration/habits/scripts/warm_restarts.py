"""CosineAnnealingWarmRestarts, stepped in every batch."""

import habit
from torch.optim import lr_scheduler

peer, model, optimizer = habit.prepared()
schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=7, T_mult=2)
peer.keep(schedule=schedule)
habit.train(peer, model, optimizer, schedule=schedule)
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
