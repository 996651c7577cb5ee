"""Epochs are counted from 1 by the script's own ``range``."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
peer.save_every("ckpt", 10)
for _epoch in range(1, 3):
    for x, y in loader:
        habit.step(model, optimizer, x, y)
        habit.pause(peer)
habit.done(peer, model)
