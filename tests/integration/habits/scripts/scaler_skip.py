"""GradScaler skips a step in which the gradients of all peers overflow."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss * float("inf") if peer.step % 24 == 3 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        habit.pause(peer)
habit.done(peer, model)
