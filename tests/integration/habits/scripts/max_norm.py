"""An embedding with ``max_norm``, which changes weights in the forward pass."""

import habit
import torch

model = torch.nn.Sequential(
    torch.nn.Embedding(12, 4, max_norm=0.5), torch.nn.Flatten(), torch.nn.Linear(8 * 4, 1)
)
habit.run(model, predict=lambda x: model((2 * x).long() % 12))
