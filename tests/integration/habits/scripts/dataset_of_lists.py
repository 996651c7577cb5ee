"""``peer.shard`` of a plain list of samples."""

import habit
import torch

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(list(habit.dataset()), batch_size=4)
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
