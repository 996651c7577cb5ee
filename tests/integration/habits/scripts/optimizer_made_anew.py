"""A new optimizer over the same parameters after some steps, for another learning rate."""

import habit
import torch

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        habit.pause(peer)
        if peer.step == 8:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        habit.step(model, optimizer, x, y)
habit.done(peer, model)
