"""torch's Muon for matrices beside AdamW for the rest, in one round."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = [
    torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=1e-2),
    torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], lr=1e-2),
]
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer, together=True)
for x, y in habit.batches(peer):
    mse_loss(model(x), y).backward()
    for each in optimizer:
        each.step()
        each.zero_grad()
habit.done(peer, model)
