"""The loop sets ``weight_decay`` from the step of the run, as DINO does."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
peer, model, optimizer = habit.prepared(model, optimizer)
for x, y in habit.batches(peer):
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.04 + 0.01 * peer.step
    habit.step(model, optimizer, x, y)
habit.done(peer, model)
