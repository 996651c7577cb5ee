"""Schedule-free SGD: the main peer evaluates in the middle of an epoch."""

import habit

import gossip

peer, model = gossip.init(), habit.model()
optimizer = habit.ScheduleFree(model.parameters(), {"lr": 0.05, "train_mode": True})
loader = peer.prepare(model, optimizer) and peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
        model.zero_grad()
        habit.pause(peer)
        if peer.is_main and peer.step % 3 == 0:
            optimizer.eval()
            optimizer.train()
habit.done(peer, model)
