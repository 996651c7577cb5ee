"""The script zeroes gradients that it keeps in a list, in a model of 295,000 parameters."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model(width=29_500)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
peer, model, optimizer = habit.prepared(model, optimizer)
for p in model.parameters():
    p.grad = torch.zeros_like(p)
kept = [p.grad for p in model.parameters()]
for x, y in habit.batches(peer):
    for gradient in kept:
        gradient.zero_()
    mse_loss(model(x), y).backward()
    optimizer.step()
habit.done(peer, model)
