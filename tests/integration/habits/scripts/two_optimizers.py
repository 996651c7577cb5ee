"""Two optimizers of one loss, each zeroed right after its own step."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model()
optimizer = [
    torch.optim.SGD(model[0].parameters(), lr=0.05),
    torch.optim.Adam(model[2].parameters(), lr=1e-2),
]
peer, model, optimizer = habit.prepared(model, optimizer)
for x, y in habit.batches(peer):
    mse_loss(model(x), y).backward()
    for each in optimizer:
        each.step()
        each.zero_grad()
habit.done(peer, model)
