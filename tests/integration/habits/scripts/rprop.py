"""Rprop, which follows the signs of gradients."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
