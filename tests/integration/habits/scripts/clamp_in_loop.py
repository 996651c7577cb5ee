"""Weights are clamped in the loop, not in ``peer.each_step``: a late peer misses that."""

import habit
import torch

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    habit.step(model, optimizer, x, y)
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.2, 0.2)
habit.done(peer, model)
