"""One optimizer over 295,000 parameters."""

import habit
import torch

model = habit.model(width=29_500)
habit.run(model, torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9))
