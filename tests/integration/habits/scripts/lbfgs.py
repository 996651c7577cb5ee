"""L-BFGS, which needs its loss several times in a step."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
peer, model, optimizer = habit.prepared(model, optimizer)
for x, y in habit.batches(peer):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
habit.done(peer, model)
