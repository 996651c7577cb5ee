"""Shampoo: the state of a parameter is larger than the parameter (``d x d``)."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip


class Shampoo(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.001):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            if p.ndim < 2:
                p.add_(p.grad, alpha=-group["lr"])
                continue
            state, rows = self.state[p], p.shape[0]
            left = state.setdefault("left", 1e-2 * torch.eye(rows))
            right = state.setdefault("right", 1e-2 * torch.eye(p.shape[1]))
            left += p.grad @ p.grad.T
            right += p.grad.T @ p.grad
            p.add_(torch.linalg.solve(left, p.grad) @ torch.linalg.inv(right), alpha=-group["lr"])


model = habit.model()
peer = gossip.init()
model, optimizer = peer.prepare(model, Shampoo(model.parameters()))
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
