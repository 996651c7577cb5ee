"""The script counts the steps of the run itself, with ``while peer.step < n``."""

import habit
import torch
from torch.nn.functional import mse_loss

xs, ys = habit.dataset().tensors
peer, model, optimizer = habit.prepared()
peer.save_every("ckpt", 10)
while peer.step < habit.STEPS:
    at = (torch.arange(4) + 4 * (peer.step + 7 * peer.id)) % len(xs)
    optimizer.zero_grad()
    mse_loss(model(xs[at]), ys[at]).backward()
    optimizer.step()
    habit.pause(peer)
habit.done(peer, model)
