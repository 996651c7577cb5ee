"""A batch sampler of the script's own."""

import habit
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import gossip


class Buckets(BatchSampler):
    pass


model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(
    DataLoader(habit.dataset(), batch_sampler=Buckets(SequentialSampler(range(288)), 4, False))
)
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
