"""BatchNorm with ``momentum=None``: a plain average of all batches."""

import habit
import torch

import gossip

model = habit.model()
model.insert(1, torch.nn.BatchNorm1d(8, momentum=None))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
