"""Adafactor of torch, with factored second moments."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
