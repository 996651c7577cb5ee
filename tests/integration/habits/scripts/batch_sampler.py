"""A batch sampler of the script's own."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import gossip


class Buckets(BatchSampler):
    pass


model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(
    DataLoader(habit.dataset(), batch_sampler=Buckets(SequentialSampler(range(288)), 4, False))
)
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
