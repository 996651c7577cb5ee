"""The loss has the norm of a gradient (``create_graph=True``)."""

import habit
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    x.requires_grad_(True)
    out = model(x)
    slope = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    optimizer.zero_grad()
    (mse_loss(out, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()).backward()
    optimizer.step()
habit.done(peer, model)
