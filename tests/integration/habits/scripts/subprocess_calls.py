"""The script starts ``nvidia-smi``-like commands by ``subprocess`` as it trains."""

import subprocess

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        if peer.step in (8, 30):
            subprocess.run(["true"], check=True)
        habit.pause(peer)
habit.done(peer, model)
