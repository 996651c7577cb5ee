"""Lion: the sign of an interpolated momentum."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            p.add_(torch.sign(0.9 * momentum + 0.1 * p.grad), alpha=-group["lr"])
            momentum.lerp_(p.grad, 0.01)


model = habit.model()
peer = gossip.init()
model, optimizer = peer.prepare(model, Lion(model.parameters()))
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
