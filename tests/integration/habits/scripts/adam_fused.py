"""Adam in its fused form, with AMSGrad."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True, fused=True)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
