"""``prepare(clip_norm=)`` clips the mean of the gradients, as ``clip_grad_norm_`` under DDP."""

import habit
import torch

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer, clip_norm=0.1)
habit.train(peer, model, optimizer)
habit.done(peer, model)
