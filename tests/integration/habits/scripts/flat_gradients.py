"""Gradients are views of one flat buffer, which the script zeroes."""

import habit
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
flat = torch.zeros(sum(p.numel() for p in model.parameters()))
at = 0
for p in model.parameters():
    p.grad = flat[at : at + p.numel()].view_as(p)
    at += p.numel()
for x, y in habit.batches(peer):
    flat.zero_()
    mse_loss(model(x), y).backward()
    optimizer.step()
habit.done(peer, model)
