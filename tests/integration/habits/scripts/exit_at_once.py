"""The script ends by ``os._exit(0)``."""

import os

import habit
import torch

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
os._exit(0)
