"""The batches do not divide the data: the last ones of an epoch are shorter."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Subset

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(DataLoader(Subset(habit.dataset(), range(283)), batch_size=4, shuffle=True))
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
