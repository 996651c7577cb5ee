"""The script sets torch's default dtype to float64."""

import habit
import torch
from torch.nn.functional import mse_loss

torch.set_default_dtype(torch.float64)

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x.double()), y.double()).backward()
    optimizer.step()
habit.done(peer, model)
