"""The script reads its settings from standard input."""

import habit
import torch

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=float(input() or 0.1), momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
