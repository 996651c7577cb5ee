"""A counter of steps, by ``peer.each_step``."""

import habit
import torch

peer, model, optimizer = habit.prepared()
seen = []
counter = torch.nn.Module()
counter.register_buffer("count", torch.zeros((), dtype=torch.long))
peer.keep(counter=counter)


@peer.each_step
def count():
    counter.count += 1


habit.train(peer, model, optimizer)
habit.done(peer, model, counts=dict(counter.named_buffers()))
