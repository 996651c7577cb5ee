"""A convolution in ``channels_last`` memory."""

import habit
import torch

import gossip

model = torch.nn.Sequential(
    torch.nn.Conv2d(2, 4, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4, 1)
).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer, predict=lambda x: model(x.view(-1, 2, 2, 2)))
habit.done(peer, model)
