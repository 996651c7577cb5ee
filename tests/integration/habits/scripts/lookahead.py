"""Lookahead: every fifth step goes half the way back to slow weights."""

import habit
import torch

peer, model, optimizer = habit.prepared()
slow = habit.model()
steps = torch.nn.Module()
steps.register_buffer("count", torch.zeros((), dtype=torch.long))
peer.keep(slow=slow, steps=steps)


@peer.each_step
@torch.no_grad()
def look_ahead():
    steps.count += 1
    for p, kept in zip(model.parameters(), slow.parameters(), strict=True):
        if steps.count % 5 == 0:
            kept.lerp_(p, 0.5)
            p.copy_(kept)


habit.train(peer, model, optimizer)
habit.done(peer, model, counts=dict(steps.named_buffers()), shared={"slow": slow})
