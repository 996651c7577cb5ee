"""A copy of a weight is made equal to it after each step: ``peer.each_step``."""

import habit
import torch

model = habit.model()
model.insert(2, torch.nn.Linear(8, 8))
peer, model, optimizer = habit.prepared(model)


@peer.each_step
@torch.no_grad()
def tie():
    model[2].weight.copy_(model[0].weight)


habit.train(peer, model, optimizer)
habit.done(peer, model)
