"""Langevin dynamics: the optimizer draws noise in ``step()``."""

import habit
import torch

import gossip


class Langevin(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            p.add_(p.grad, alpha=-group["lr"])
            p.add_(torch.randn_like(p), alpha=1e-3)


model = habit.model()
peer = gossip.init()
model, optimizer = peer.prepare(model, Langevin(model.parameters()))
habit.train(peer, model, optimizer)
habit.done(peer, model)
