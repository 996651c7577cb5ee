"""Lookahead: every fifth step goes half the way back to slow weights."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
slow = habit.model()
steps = torch.nn.Module()
steps.register_buffer("count", torch.zeros((), dtype=torch.long))
peer.keep(slow=slow, steps=steps)


@peer.each_step
@torch.no_grad()
def look_ahead():
    steps.count += 1
    for p, kept in zip(model.parameters(), slow.parameters(), strict=True):
        if steps.count % 5 == 0:
            kept.lerp_(p, 0.5)
            p.copy_(kept)


loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model, counts=dict(steps.named_buffers()), shared={"slow": slow})
