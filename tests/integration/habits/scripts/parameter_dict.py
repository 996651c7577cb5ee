"""Parameters in a ``ParameterDict``, one of which never gets a gradient."""

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

extra = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.ones(1)) for name in "ab"})
model = torch.nn.ModuleDict({"net": habit.model(), "extra": extra})
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model["net"](x) * extra["a"], y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
