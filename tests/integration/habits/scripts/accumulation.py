"""Gradients of three batches are accumulated for one step."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader(), accumulate=3)
for _ in peer.epochs(6, save="ckpt", every=10):
    at = 0
    for x, y in loader:
        (mse_loss(model(x), y) / 3).backward()
        at += 1
        if at % 3:
            continue
        optimizer.step()
        optimizer.zero_grad()
        habit.pause(peer)
habit.done(peer, model)
