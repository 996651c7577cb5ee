"""The loop sets ``eps`` and ``betas`` from a counter of its own."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
peer, model, optimizer = habit.prepared(model, optimizer)
for seen, (x, y) in enumerate(habit.batches(peer), 1):
    optimizer.param_groups[0]["eps"] = 1e-3 / seen
    optimizer.param_groups[0]["betas"] = (0.9, 1 - 0.1 / seen)
    habit.step(model, optimizer, x, y)
habit.done(peer, model)
