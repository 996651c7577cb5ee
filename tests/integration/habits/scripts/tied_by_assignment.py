"""Two layers share one weight by assignment."""

import habit
import torch

model = habit.model()
model.insert(2, torch.nn.Linear(8, 8))
model[2].weight = model[0].weight
habit.run(model)
