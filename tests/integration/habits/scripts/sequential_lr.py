"""SequentialLR: a linear warm-up before a cosine."""

import habit
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
habit.train(peer, model, optimizer, schedule=schedule)
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
