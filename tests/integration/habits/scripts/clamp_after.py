"""Weights are clamped after each step, as a WGAN does: ``peer.each_step``."""

import habit
import torch

peer, model, optimizer = habit.prepared()


@peer.each_step
def clamp():
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.2, 0.2)


habit.train(peer, model, optimizer)
habit.done(peer, model)
