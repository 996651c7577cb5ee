"""A moving average as a copy of the model, updated parameter by parameter."""

from copy import deepcopy

import habit

peer, model, optimizer = habit.prepared()
average = deepcopy(model).requires_grad_(False)
peer.keep(average=average)


@peer.each_step
def update():
    for kept, p in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(p.detach(), 0.1)


habit.train(peer, model, optimizer)
habit.done(peer, model, shared={"average": average})
