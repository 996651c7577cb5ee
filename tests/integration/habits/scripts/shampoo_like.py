"""Shampoo: the state of a parameter is larger than the parameter (``d x d``)."""

import habit
import torch


class Shampoo(torch.optim.Optimizer):
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
habit.run(model, Shampoo(model.parameters(), {"lr": 0.001}))
