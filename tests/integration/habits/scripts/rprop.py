"""Rprop, which follows the signs of gradients."""

import habit
import torch

model = habit.model()
habit.run(model, torch.optim.Rprop(model.parameters(), lr=1e-3))
