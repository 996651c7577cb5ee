"""``peer.shard`` of a plain list of samples."""

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(list(habit.dataset()), batch_size=4)
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
