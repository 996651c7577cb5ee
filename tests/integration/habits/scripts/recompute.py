"""Activation checkpointing: the forward pass is computed again."""

import habit
import torch
from torch.utils.checkpoint import checkpoint

import gossip

model = habit.model()
model.insert(2, torch.nn.Dropout(0.3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer, predict=lambda x: checkpoint(model, x, use_reentrant=False))
habit.done(peer, model)
