"""``peer.steps``: each peer draws a batch of its own in every step."""

import habit
import torch
from torch.nn.functional import mse_loss

xs, ys = habit.dataset().tensors
peer, model, optimizer = habit.prepared()
for _ in peer.steps(habit.STEPS, save="ckpt", every=10):
    at = torch.randint(len(xs), (4,))
    optimizer.zero_grad()
    mse_loss(model(xs[at]), ys[at]).backward()
    optimizer.step()
    habit.pause(peer)
habit.done(peer, model)
