"""A convolution in ``channels_last`` memory."""

import habit
import torch

model = torch.nn.Sequential(
    torch.nn.Conv2d(2, 4, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4, 1)
).to(memory_format=torch.channels_last)
habit.run(model, predict=lambda x: model(x.view(-1, 2, 2, 2)))
