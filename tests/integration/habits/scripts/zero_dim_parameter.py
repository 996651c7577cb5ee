"""A parameter without dimensions, such as a learned temperature."""

import habit
import torch

import gossip

model = habit.model()
model.scale = torch.nn.Parameter(torch.tensor(1.0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer, predict=lambda x: model(x) * model.scale)
habit.done(peer, model)
