"""A look at the first batch of each epoch, as to log an image of it."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
looks = 0
for _ in peer.epochs(2, save="ckpt", every=10):
    looks += len(next(iter(loader))[0]) > 0
    for x, y in loader:
        habit.pause(peer)
        habit.step(model, optimizer, x, y)
habit.done(peer, model)
