"""RMSprop, centred, with momentum."""

import habit
import torch

model = habit.model()
habit.run(model, torch.optim.RMSprop(model.parameters(), lr=1e-3, centered=True, momentum=0.5))
