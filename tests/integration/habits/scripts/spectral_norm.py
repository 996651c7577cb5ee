"""Spectral norm by parametrization: power iterations in the forward pass."""

import habit
import torch
from torch.nn.utils.parametrizations import spectral_norm

import gossip

model = habit.model()
spectral_norm(model[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
