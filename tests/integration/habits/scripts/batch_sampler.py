"""A batch sampler of the script's own."""

import habit
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


class Buckets(BatchSampler):
    pass


peer, model, optimizer = habit.prepared()
loader = peer.shard(
    DataLoader(habit.dataset(), batch_sampler=Buckets(SequentialSampler(range(288)), 4, False))
)
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
