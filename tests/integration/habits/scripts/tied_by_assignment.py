"""Two layers share one weight by assignment."""

import habit
import torch

import gossip

model = habit.model()
model.insert(2, torch.nn.Linear(8, 8))
model[2].weight = model[0].weight
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
