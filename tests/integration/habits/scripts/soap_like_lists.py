"""SOAP: the state of a parameter holds lists of tensors and a tuple."""

import habit
import torch


class Soap(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            state = self.state[p]
            if "bases" not in state:
                state["bases"] = [torch.zeros(n, n) for n in p.shape]
                state["past"] = (torch.zeros_like(p), 0)
            for axis, basis in enumerate(state["bases"]):
                flat = p.grad.movedim(axis, 0).reshape(p.shape[axis], -1)
                basis.lerp_(flat @ flat.T, 0.1)
            state["past"] = (0.9 * state["past"][0] + 0.1 * p.grad, state["past"][1] + 1)
            scale = sum(basis.diagonal().mean() for basis in state["bases"]).sqrt()
            p.add_(state["past"][0] / (scale + 1e-3), alpha=-group["lr"] / 10)


model = habit.model()
habit.run(model, Soap(model.parameters(), {"lr": 0.01}))
