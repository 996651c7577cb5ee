"""A layer is frozen before ``prepare``."""

import habit
import torch

model = habit.model()
model[0].requires_grad_(False)
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
