"""GaLore: the optimizer draws a projection in every tenth step."""

import habit
import torch


class Galore(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            state = self.state[p]
            count = state["step"] = state.get("step", -1) + 1
            flat = p.grad.reshape(len(p), -1)
            if count % 10 == 0:
                state["basis"] = torch.linalg.qr(torch.randn(flat.shape[1], 2)).Q
            low = flat @ state["basis"]
            momentum = state.setdefault("momentum", torch.zeros_like(low))
            momentum.lerp_(low, 0.1)
            p.add_((momentum @ state["basis"].T).view_as(p), alpha=-group["lr"])


model = habit.model()
habit.run(model, Galore(model.parameters(), {"lr": 0.05}))
