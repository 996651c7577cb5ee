"""Schedule-free SGD: ``train()`` and ``eval()`` swap the weights around each epoch."""

import habit

model = habit.model()
optimizer = habit.ScheduleFree(model.parameters(), {"lr": 0.05, "train_mode": True})
peer, model, optimizer = habit.prepared(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    optimizer.train()
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        habit.pause(peer)
    optimizer.eval()
habit.done(peer, model)
