"""GradScaler skips a step in which the gradients of all peers overflow."""

import habit
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for x, y in habit.batches(peer):
    loss = mse_loss(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss * float("inf") if peer.step % 24 == 3 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
habit.done(peer, model)
