"""Adam that steps all tensors at once (``foreach=True``)."""

import habit
import torch

model = habit.model()
habit.run(model, torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True))
