"""Adam that steps all tensors at once (``foreach=True``)."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
