"""An embedding with ``max_norm``, which changes weights in the forward pass."""

import habit
import torch

import gossip

model = torch.nn.Sequential(
    torch.nn.Embedding(12, 4, max_norm=0.5), torch.nn.Flatten(), torch.nn.Linear(8 * 4, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer, predict=lambda x: model((2 * x).long() % 12))
habit.done(peer, model)
