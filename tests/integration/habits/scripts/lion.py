"""Lion: the sign of an interpolated momentum."""

import habit
import torch

import gossip


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in ((g, p) for g in self.param_groups for p in g["params"]):
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            p.add_(torch.sign(0.9 * momentum + 0.1 * p.grad), alpha=-group["lr"])
            momentum.lerp_(p.grad, 0.01)


model = habit.model()
peer = gossip.init()
model, optimizer = peer.prepare(model, Lion(model.parameters()))
habit.train(peer, model, optimizer)
habit.done(peer, model)
