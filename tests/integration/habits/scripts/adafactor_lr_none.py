"""Adafactor without a learning rate (``lr=None``): the step follows from the step number."""

import habit
import torch


class Relative(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            state = self.state[p]
            state["step"] = state.get("step", 0) + 1
            square = state.setdefault("square", torch.zeros_like(p))
            square.lerp_(p.grad.square(), 1 - 0.9)
            lr = group["lr"] or min(1e-2, state["step"] ** -0.5)
            p.add_(p.grad / (square.sqrt() + 1e-8), alpha=-lr)


model = habit.model()
habit.run(model, Relative(model.parameters(), {"lr": None}))
