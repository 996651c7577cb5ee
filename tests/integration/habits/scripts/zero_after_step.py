"""``zero_grad(set_to_none=False)`` right after the step."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
habit.done(peer, model)
