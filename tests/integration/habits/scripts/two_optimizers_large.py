"""Two optimizers over 295,000 parameters together."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model(width=29_500)
optimizer = [
    torch.optim.Adam(model[0].parameters(), lr=1e-4),
    torch.optim.SGD(model[2].parameters(), lr=1e-3),
]
peer, model, optimizer = habit.prepared(model, optimizer)
for x, y in habit.batches(peer):
    for each in optimizer:
        each.zero_grad()
    mse_loss(model(x), y).backward()
    for each in optimizer:
        each.step()
habit.done(peer, model)
