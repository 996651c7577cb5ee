"""A hook of the optimizer clips what the swarm made of the gradients."""

import habit
import torch
from torch.nn.utils import clip_grad_norm_

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
optimizer.register_step_pre_hook(lambda *_: clip_grad_norm_(model.parameters(), 0.1) and None)
habit.train(peer, model, optimizer)
habit.done(peer, model)
