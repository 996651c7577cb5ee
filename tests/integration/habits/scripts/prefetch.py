"""The loop fetches the next batch before it steps on this one."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    batches = iter(loader)
    following = next(batches)
    while following is not None:
        x, y = following
        following = next(batches, None)
        habit.step(model, optimizer, x, y)
        habit.pause(peer)
habit.done(peer, model)
