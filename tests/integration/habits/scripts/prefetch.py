"""The loop fetches the next batch before it steps on this one."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    batches = iter(loader)
    following = next(batches)
    while following is not None:
        x, y = following
        following = next(batches, None)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
