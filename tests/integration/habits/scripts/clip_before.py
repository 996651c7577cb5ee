"""Gradients are clipped between ``backward`` and ``step``."""

import habit
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
habit.done(peer, model)
