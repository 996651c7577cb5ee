"""The script clears the optimizer's state at the start of the second epoch."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for epoch in peer.epochs(2, save="ckpt", every=10):
    if epoch == 1:
        optimizer.state.clear()
    for x, y in loader:
        habit.step(model, optimizer, x, y)
        habit.pause(peer)
habit.done(peer, model)
