"""One optimizer for each parameter, stepped in ``register_post_accumulate_grad_hook``."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = [torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()]
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
by_parameter = dict(zip(model.parameters(), optimizer, strict=True))


def step_at_once(p):
    by_parameter[p].step()
    by_parameter[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_at_once)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        mse_loss(model(x), y).backward()
        habit.pause(peer)
habit.done(peer, model)
