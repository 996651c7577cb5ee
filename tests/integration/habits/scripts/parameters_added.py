"""Parameters are added to the optimizer in the second epoch."""

import habit
import torch

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for epoch in peer.epochs(2, save="ckpt", every=10):
    if epoch == 1:
        added = torch.nn.Linear(1, 1)
        optimizer.add_param_group({"params": added.parameters()})
        model.append(added)
    for x, y in loader:
        habit.step(model, optimizer, x, y)
        habit.pause(peer)
habit.done(peer, model)
