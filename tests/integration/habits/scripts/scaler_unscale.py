"""GradScaler with ``unscale_`` and clipping."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(mse_loss(model(x), y)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        habit.pause(peer)
habit.done(peer, model)
