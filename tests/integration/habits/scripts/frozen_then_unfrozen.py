"""A layer is frozen in the first epoch and trained in the second."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for epoch in peer.epochs(2, save="ckpt", every=10):
    model[0].requires_grad_(epoch >= 1)
    for x, y in loader:
        habit.step(model, optimizer, x, y)
        habit.pause(peer)
habit.done(peer, model)
