"""An optimizer that keeps counters under a word (``self.state["all"]``)."""

import habit
import torch


class Counting(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            count = self.state["all"].setdefault("steps", 0)
            self.state["all"]["steps"] = count + 1
            p.add_(p.grad, alpha=-group["lr"] / (1 + 0.01 * count))


model = habit.model()
peer, model, optimizer = habit.prepared(model, Counting(model.parameters(), {"lr": 0.05}))
habit.train(peer, model, optimizer)
habit.done(peer, model, counts={"steps of all": optimizer.state["all"]["steps"]})
