"""Muon: momentum that is orthogonalised by Newton-Schulz iterations."""

import habit
import torch


class Muon(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.mul_(0.9).add_(p.grad)
            if p.ndim < 2:
                p.add_(p.grad, alpha=-group["lr"])
                continue
            made = momentum / (momentum.norm() + 1e-7)
            for _ in range(5):
                square = made @ made.T
                made = 3.4445 * made + (-4.775 * square + 2.0315 * square @ square) @ made
            p.add_(made, alpha=-group["lr"])


model = habit.model()
habit.run(model, Muon(model.parameters(), {"lr": 0.01}))
