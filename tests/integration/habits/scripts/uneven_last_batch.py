"""The batches do not divide the data: the last ones of an epoch are shorter."""

import habit
import torch
from torch.utils.data import DataLoader, Subset

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(DataLoader(Subset(habit.dataset(), range(283)), batch_size=4, shuffle=True))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
