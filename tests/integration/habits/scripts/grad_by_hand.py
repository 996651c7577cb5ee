"""``autograd.grad`` writes into gradients that the script has made."""

import habit
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for p in model.parameters():
    p.grad = torch.zeros_like(p)
for x, y in habit.batches(peer):
    gradients = torch.autograd.grad(mse_loss(model(x), y), list(model.parameters()))
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad.copy_(gradient)
    optimizer.step()
habit.done(peer, model)
