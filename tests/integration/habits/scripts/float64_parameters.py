"""All parameters are float64."""

import habit
from torch.nn.functional import mse_loss

model = habit.model().double()
peer, model, optimizer = habit.prepared(model)
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x.double()), y.double()).backward()
    optimizer.step()
habit.done(peer, model)
