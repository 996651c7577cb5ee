"""Weights are shrunk by hand after each step: ``peer.each_step``."""

import habit
import torch

peer, model, optimizer = habit.prepared()


@peer.each_step
def decay():
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.99)


habit.train(peer, model, optimizer)
habit.done(peer, model)
