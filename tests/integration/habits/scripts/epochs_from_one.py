"""Epochs are counted from 1 by the script's own ``range``."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
peer.save_every("ckpt", 10)
for _epoch in range(1, 3):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
