"""Three optimizers, stepped in another order than they were prepared in."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model()
first, *biases = [model[0].weight], [model[0].bias, model[2].bias], [model[2].weight]
optimizer = [torch.optim.SGD(each, lr=0.05, momentum=0.9) for each in (first, *biases)]
peer, model, optimizer = habit.prepared(model, optimizer)
for x, y in habit.batches(peer):
    for each in optimizer:
        each.zero_grad()
    mse_loss(model(x), y).backward()
    for each in reversed(optimizer):
        each.step()
habit.done(peer, model)
