"""Batches are dicts."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

import gossip


class Samples(Dataset):
    def __len__(self):
        return 288

    def __getitem__(self, at):
        x, y = habit.dataset()[at]
        return {"inputs": x, "target": y, "name": str(at)}


model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(DataLoader(Samples(), batch_size=4, shuffle=True))
for _ in peer.epochs(2, save="ckpt", every=10):
    for batch in loader:
        x, y = batch["inputs"], batch["target"]
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model)
