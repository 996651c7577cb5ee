"""Langevin dynamics: the optimizer draws noise in ``step()``."""

import habit
import torch


class Langevin(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            p.add_(p.grad, alpha=-group["lr"])
            p.add_(torch.randn_like(p), alpha=1e-3)


model = habit.model()
habit.run(model, Langevin(model.parameters(), {"lr": 0.05}))
