"""Persistent workers that prefetch."""

import habit
import torch

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader(num_workers=1, persistent_workers=True))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
