"""A parameter gets a gradient in every second step only."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model()
model.spare = torch.nn.Parameter(torch.ones(()))
peer, model, optimizer = habit.prepared(model)
for x, y in habit.batches(peer):
    factor = model.spare if peer.step % 2 else 1.0
    optimizer.zero_grad()
    mse_loss(factor * model(x), y).backward()
    optimizer.step()
habit.done(peer, model)
