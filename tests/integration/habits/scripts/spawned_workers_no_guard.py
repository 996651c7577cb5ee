"""Workers that are spawned, without a ``__main__`` guard: each worker runs the script again."""

import habit

peer, model, optimizer = habit.prepared()
how = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
loader = peer.shard(habit.loader(**how))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
peer.close()
