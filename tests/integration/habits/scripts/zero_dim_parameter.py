"""A parameter without dimensions, such as a learned temperature."""

import habit
import torch

model = habit.model()
model.scale = torch.nn.Parameter(torch.tensor(1.0))
habit.run(model, predict=lambda x: model(x) * model.scale)
