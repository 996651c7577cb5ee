"""A SubsetRandomSampler over a part of the data."""

import habit
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(
    DataLoader(habit.dataset(), batch_size=4, sampler=SubsetRandomSampler(range(200)))
)
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
