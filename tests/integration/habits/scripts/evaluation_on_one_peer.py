"""Only the main peer evaluates, in ``eval()`` mode and without gradients."""

import habit
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        habit.step(model, optimizer, x, y)
        habit.pause(peer)
    if peer.is_main:
        model.eval()
        with torch.no_grad():
            peer.log(test=mse_loss(model(habit.dataset().tensors[0]), habit.dataset().tensors[1]))
        model.train()
habit.done(peer, model)
