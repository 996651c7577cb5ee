"""GradScaler with ``unscale_`` and clipping."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

peer, model, optimizer = habit.prepared()
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    scaler.scale(mse_loss(model(x), y)).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
habit.done(peer, model)
