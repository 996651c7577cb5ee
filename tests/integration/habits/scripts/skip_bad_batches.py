"""``continue`` on batches that the script finds bad."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        habit.pause(peer)
        if x[0, 0] > 1.2:
            continue
        habit.step(model, optimizer, x, y)
habit.done(peer, model)
