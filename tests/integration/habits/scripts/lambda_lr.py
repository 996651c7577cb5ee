"""LambdaLR: warm-up and cosine, created after ``prepare``."""

import habit
from torch.optim import lr_scheduler

peer, model, optimizer = habit.prepared()
schedule = lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10) / (1 + 0.02 * s))
peer.keep(schedule=schedule)
habit.train(peer, model, optimizer, schedule=schedule)
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
