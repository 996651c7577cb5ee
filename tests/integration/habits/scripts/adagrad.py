"""Adagrad, whose state is there before the first step."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
