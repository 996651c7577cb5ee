"""A complex parameter."""

import habit
import torch

import gossip

model = habit.model()
model.phase = torch.nn.Parameter(torch.ones(1, dtype=torch.complex64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer, predict=lambda x: model(x) * model.phase.real)
habit.done(peer, model)
