"""The batches do not divide the data: the last ones of an epoch are shorter."""

import habit
from torch.utils.data import DataLoader, Subset

peer, model, optimizer = habit.prepared()
loader = peer.shard(DataLoader(Subset(habit.dataset(), range(283)), batch_size=4, shuffle=True))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
