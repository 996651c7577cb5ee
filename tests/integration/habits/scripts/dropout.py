"""Dropout and noise on the input: forward passes draw random numbers."""

import habit
import torch

import gossip

model = habit.model()
model.insert(2, torch.nn.Dropout(0.3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer, predict=lambda x: model(x + 0.1 * torch.randn_like(x)))
habit.done(peer, model)
