"""One optimizer over 295,000 parameters."""

import habit
import torch

model = habit.model(width=29_500)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
