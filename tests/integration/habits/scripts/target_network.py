"""A target network that follows every tenth step, and gives the targets."""

from copy import deepcopy

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
target = deepcopy(model).requires_grad_(False)
peer.keep(target=target)


@peer.each_step
def follow():
    if peer.step % 10 == 0:
        target.load_state_dict(model.state_dict())


loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), 0.5 * y + 0.5 * target(x)).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model, shared={"target": target})
