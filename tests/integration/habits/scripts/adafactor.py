"""Adafactor of torch, with factored second moments."""

import habit
import torch

model = habit.model()
habit.run(model, torch.optim.Adafactor(model.parameters(), lr=1e-2))
