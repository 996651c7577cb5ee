"""Parameters in a ``ParameterDict``, one of which never gets a gradient."""

import habit
import torch
from torch.nn.functional import mse_loss

extra = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.ones(1)) for name in "ab"})
model = torch.nn.ModuleDict({"net": habit.model(), "extra": extra})
peer, model, optimizer = habit.prepared(model)
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model["net"](x) * extra["a"], y).backward()
    optimizer.step()
habit.done(peer, model)
