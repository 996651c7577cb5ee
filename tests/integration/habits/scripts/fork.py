"""The script forks a child in the middle of the run, which ends by ``os._exit(0)``."""

import os

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    if peer.step in (8, 30):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
habit.done(peer, model)
