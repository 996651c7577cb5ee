"""BatchNorm with ``momentum=None``: a plain average of all batches."""

import habit
import torch

model = habit.model()
model.insert(1, torch.nn.BatchNorm1d(8, momentum=None))
habit.run(model)
