"""OneCycleLR over the planned steps, with its momentum."""

import habit
from torch.optim import lr_scheduler

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2 * len(loader))
peer.keep(schedule=schedule)
habit.train(peer, model, optimizer, loader, schedule=schedule)
habit.done(peer, model, counts={"lr": optimizer.param_groups[0]["lr"]})
