"""Lion: the sign of an interpolated momentum."""

import habit
import torch


class Lion(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            p.add_(torch.sign(0.9 * momentum + 0.1 * p.grad), alpha=-group["lr"])
            momentum.lerp_(p.grad, 0.01)


model = habit.model()
habit.run(model, Lion(model.parameters(), {"lr": 0.01}))
