"""``torch.autocast`` to bfloat16 around the forward pass."""

import habit
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mse_loss(model(x).float(), y)
    loss.backward()
    optimizer.step()
habit.done(peer, model)
