"""Dropout and noise on the input: forward passes draw random numbers."""

import habit
import torch

model = habit.model()
model.insert(2, torch.nn.Dropout(0.3))
habit.run(model, predict=lambda x: model(x + 0.1 * torch.randn_like(x)))
