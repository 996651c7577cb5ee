"""The script seeds torch, numpy and Python itself, after ``init``."""

import random

import habit
import numpy as np
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
random.seed(3)
np.random.seed(3)
torch.manual_seed(3)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        (mse_loss(model(x), y) + 0 * random.random()).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
