"""One optimizer for each parameter, stepped in a loop."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model()
optimizer = [torch.optim.Adam([p], lr=1e-2) for p in model.parameters()]
peer, model, optimizer = habit.prepared(model, optimizer)
for x, y in habit.batches(peer):
    mse_loss(model(x), y).backward()
    for each in optimizer:
        each.step()
        each.zero_grad()
habit.done(peer, model)
