"""Before each epoch, a pass over the sharded loader measures the loss on the training data."""

import habit
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    with torch.no_grad():
        losses = [mse_loss(model(x), y).item() for x, y in loader]
    for x, y in loader:
        habit.pause(peer)
        habit.step(model, optimizer, x, y)
habit.done(peer, model)
