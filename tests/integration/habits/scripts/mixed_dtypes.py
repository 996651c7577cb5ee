"""A bfloat16 layer between float32 layers."""

import habit
import torch

import gossip

model = habit.model()
model[2].bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer, predict=lambda x: model[2](model[:2](x).bfloat16()).float())
habit.done(peer, model)
