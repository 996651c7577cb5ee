"""The loop sets ``momentum`` from the step of the run."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.param_groups[0]["momentum"] = min(0.95, 0.5 + 0.02 * peer.step)
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
habit.done(peer, model)
