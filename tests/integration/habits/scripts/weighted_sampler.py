"""A WeightedRandomSampler."""

import habit
from torch.utils.data import DataLoader, WeightedRandomSampler

peer, model, optimizer = habit.prepared()
loader = peer.shard(
    DataLoader(habit.dataset(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 288, 288))
)
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
