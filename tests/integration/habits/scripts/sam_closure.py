"""SAM whose ``step(closure)`` evaluates the loss a second time, at the climbed point."""

import habit
import torch


class Sam(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure):
        parameters = self.param_groups[0]["params"]
        old = [p.clone() for p in parameters]
        for p in parameters:
            p.add_(p.grad, alpha=0.05 / (float(p.grad.norm()) + 1e-12))
        with torch.enable_grad():
            self.zero_grad()
            closure()
        for p, before in zip(parameters, old, strict=True):
            p.copy_(before)
        self.base.step()


model = habit.model()
peer, model, optimizer = habit.prepared(model, Sam(model.parameters(), lr=0.05))
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step(lambda: (model(x) - y).square().mean().backward())  # noqa: B023
habit.done(peer, model)
