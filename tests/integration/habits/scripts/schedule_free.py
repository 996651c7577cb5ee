"""Schedule-free SGD: ``train()`` and ``eval()`` swap the weights around each epoch."""

import habit
import torch

import gossip


class ScheduleFree(torch.optim.Optimizer):
    def train(self, mode=True):
        group = self.param_groups[0]
        for p in group["params"] * (group["train_mode"] != mode):
            p.data.lerp_(self.state[p].get("z", p.data), 0.1 if mode else 1 - 1 / 0.9)
        group["train_mode"] = mode

    def eval(self):
        self.train(False)

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            z = self.state[p].setdefault("z", p.clone()).sub_(p.grad, alpha=0.05)
            p.lerp_(z, 0.05).add_(p.grad, alpha=-0.005)


model = habit.model()
optimizer = ScheduleFree(model.parameters(), {"lr": 0.05, "train_mode": True})
peer = gossip.init()
peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    optimizer.train()
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        habit.pause(peer)
    optimizer.eval()
habit.done(peer, model)
