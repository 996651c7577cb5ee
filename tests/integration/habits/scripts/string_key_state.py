"""An optimizer that keeps counters under a word (``self.state["all"]``)."""

import habit
import torch

import gossip


class Counting(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            count = self.state["all"].setdefault("steps", 0)
            self.state["all"]["steps"] = count + 1
            p.add_(p.grad, alpha=-group["lr"] / (1 + 0.01 * count))


model = habit.model()
peer = gossip.init()
model, optimizer = peer.prepare(model, Counting(model.parameters()))
habit.train(peer, model, optimizer)
habit.done(peer, model, counts={"steps of all": optimizer.state["all"]["steps"]})
