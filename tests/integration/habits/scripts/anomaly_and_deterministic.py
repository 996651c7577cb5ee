"""Deterministic algorithms and anomaly detection are switched on."""

import habit
import torch

import gossip

torch.use_deterministic_algorithms(True)
torch.autograd.set_detect_anomaly(True)

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
