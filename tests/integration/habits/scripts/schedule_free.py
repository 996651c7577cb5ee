"""Schedule-free SGD: ``train()`` and ``eval()`` swap the weights around each epoch."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip


class ScheduleFree(torch.optim.Optimizer):
    def train(self, mode=True):
        group = self.param_groups[0]
        for p in group["params"] if group["train_mode"] != mode else []:
            p.data.lerp_(self.state[p].get("z", p.data), 0.1 if mode else 1 - 1 / 0.9)
        group["train_mode"] = mode

    def eval(self):
        self.train(False)

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        group["k"] += 1
        for p in group["params"]:
            z = self.state[p].setdefault("z", p.clone())
            p.lerp_(z, 1 / group["k"]).add_(p.grad, alpha=-group["lr"] * 0.1)
            z.sub_(p.grad, alpha=group["lr"])


model = habit.model()
optimizer = ScheduleFree(model.parameters(), {"lr": 0.05, "k": 0, "train_mode": True})
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    optimizer.train()
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
    optimizer.eval()
habit.done(peer, model)
