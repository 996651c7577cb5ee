"""A complex parameter."""

import habit
import torch

model = habit.model()
model.phase = torch.nn.Parameter(torch.ones(1, dtype=torch.complex64))
habit.run(model, predict=lambda x: model(x) * model.phase.real)
