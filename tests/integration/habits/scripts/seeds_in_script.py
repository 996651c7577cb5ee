"""The script seeds torch, numpy and Python itself, after ``init``."""

import random

import habit
import numpy as np
import torch
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
random.seed(3)
np.random.seed(3)
torch.manual_seed(3)
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    (mse_loss(model(x), y) + 0 * random.random()).backward()
    optimizer.step()
habit.done(peer, model)
