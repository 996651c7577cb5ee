"""Adagrad, whose state is there before the first step."""

import habit
import torch

model = habit.model()
habit.run(model, torch.optim.Adagrad(model.parameters(), lr=0.05))
