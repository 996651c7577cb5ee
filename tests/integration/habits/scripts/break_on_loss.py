"""``break`` when the loss of a batch of this peer is small."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        loss = mse_loss(model(x), y)
        if loss < 0.01 and peer.step % 24 > 18:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
