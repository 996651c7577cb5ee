"""A scheduler that is not given to ``peer.keep``."""

import habit
from torch.optim import lr_scheduler

peer, model, optimizer = habit.prepared()
schedule = lr_scheduler.ExponentialLR(optimizer, 0.98)
habit.train(peer, model, optimizer, schedule=schedule)
habit.done(peer, model)
