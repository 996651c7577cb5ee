"""One optimizer for each parameter, stepped in ``register_post_accumulate_grad_hook``."""

import habit
import torch
from torch.nn.functional import mse_loss

model = habit.model()
optimizer = [torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()]
peer, model, optimizer = habit.prepared(model, optimizer)
by_parameter = dict(zip(model.parameters(), optimizer, strict=True))


def step_at_once(p):
    by_parameter[p].step()
    by_parameter[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_at_once)
for x, y in habit.batches(peer):
    mse_loss(model(x), y).backward()
habit.done(peer, model)
