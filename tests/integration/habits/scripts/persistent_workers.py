"""Persistent workers that prefetch."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader(num_workers=1, persistent_workers=True))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
