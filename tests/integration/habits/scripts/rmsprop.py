"""RMSprop, centred, with momentum."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, centered=True, momentum=0.5)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
