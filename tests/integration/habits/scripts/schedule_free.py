"""Schedule-free SGD: ``swap`` changes between training and averaged weights around each epoch."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip


class ScheduleFree(torch.optim.SGD):
    @torch.no_grad()
    def swap(self, weight):
        for p in self.param_groups[0]["params"]:
            p.lerp_(self.state[p].get("z", p), weight)

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        group["step"] = group.get("step", 0) + 1
        for p in group["params"]:
            z = self.state[p].setdefault("z", p.clone())
            p.lerp_(z, 1 / group["step"]).add_(p.grad, alpha=-group["lr"] * 0.1)
            z.sub_(p.grad, alpha=group["lr"])


model = habit.model()
peer = gossip.init()
model, optimizer = peer.prepare(model, ScheduleFree(model.parameters(), lr=0.05))
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    optimizer.swap(0.1)
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
    optimizer.swap(1 - 1 / 0.9)
habit.done(peer, model)
