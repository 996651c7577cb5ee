"""Adagrad, whose state is there before the first step."""

import habit
import torch

import gossip

model = habit.model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
