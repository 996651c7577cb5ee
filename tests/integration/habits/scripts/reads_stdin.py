"""The script reads its settings from standard input."""

import habit
import torch

model = habit.model()
habit.run(model, torch.optim.SGD(model.parameters(), lr=float(input() or 0.1), momentum=0.9))
