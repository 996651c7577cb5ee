"""SGD with Nesterov momentum and weight decay."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3
)
habit.run(model, optimizer)
