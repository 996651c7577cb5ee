"""A complex parameter."""

import habit
import torch

model = habit.model()
model.phase = torch.nn.Parameter(torch.ones(1, dtype=torch.complex64))
peer, model, optimizer = habit.prepared(model)
habit.train(peer, model, optimizer, predict=lambda x: model(x) * model.phase.real)
habit.done(peer, model)
