"""The script reads its settings from standard input."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=float(input() or 0.1), momentum=0.9)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
