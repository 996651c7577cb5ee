"""SAM: ``first_step`` climbs, ``second_step`` steps its base optimizer."""

import habit
import torch


class Sam(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.clone()
            p.add_(p.grad, alpha=0.05 / (float(p.grad.norm()) + 1e-12))

    @torch.no_grad()
    def second_step(self):
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
        self.base.step()


model = habit.model()
peer, model, optimizer = habit.prepared(model, Sam(model.parameters(), lr=0.05))
for x, y in habit.batches(peer):
    for half in (optimizer.first_step, optimizer.second_step):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        half()
habit.done(peer, model)
