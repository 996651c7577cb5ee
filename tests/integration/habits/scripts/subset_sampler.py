"""A SubsetRandomSampler over a part of the data."""

import habit
from torch.utils.data import DataLoader, SubsetRandomSampler

peer, model, optimizer = habit.prepared()
loader = peer.shard(
    DataLoader(habit.dataset(), batch_size=4, sampler=SubsetRandomSampler(range(200)))
)
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
