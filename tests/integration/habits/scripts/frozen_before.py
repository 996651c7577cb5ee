"""A layer is frozen before ``prepare``."""

import habit
import torch

model = habit.model()
model[0].requires_grad_(False)
habit.run(model, torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2))
