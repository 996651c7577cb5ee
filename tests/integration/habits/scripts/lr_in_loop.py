"""The loop sets ``lr`` from the step of the run."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + peer.step)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
habit.done(peer, model)
