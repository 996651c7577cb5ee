"""SequentialLR: a linear warm-up before a cosine."""

import habit
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler

peer, model, optimizer = habit.prepared()
schedule = lr_scheduler.SequentialLR(
    optimizer,
    [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=40),
    ],
    milestones=[10],
)
peer.keep(schedule=schedule)
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    schedule.step()
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
