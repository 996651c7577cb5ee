"""Schedule-free SGD: the main peer evaluates in the middle of an epoch."""

import functools

import habit
import torch

import gossip


class ScheduleFree(torch.optim.Optimizer):
    def train(self, mode=True):
        group, share = self.param_groups[0], 0.1 if mode else 1 - 1 / 0.9
        for p in group["params"] * (group["train_mode"] != mode):
            p.data.lerp_(self.state[p].get("z", p.data), share)
        group["train_mode"] = mode

    eval = functools.partialmethod(train, False)

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            z = self.state[p].setdefault("z", p.clone()).sub_(p.grad, alpha=0.05)
            p.lerp_(z, 0.05).add_(p.grad, alpha=-0.005)


peer, model = gossip.init(), habit.model()
optimizer = ScheduleFree(model.parameters(), {"lr": 0.05, "train_mode": True})
loader = peer.prepare(model, optimizer) and peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
        model.zero_grad()
        habit.pause(peer)
        if peer.is_main and peer.step % 3 == 0:
            optimizer.eval()
            optimizer.train()
habit.done(peer, model)
