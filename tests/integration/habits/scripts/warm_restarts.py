"""CosineAnnealingWarmRestarts, stepped in every batch."""

import habit
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler

peer, model, optimizer = habit.prepared()
schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=7, T_mult=2)
peer.keep(schedule=schedule)
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    schedule.step()
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
