"""A thread of the script reads the weights while the run trains."""

import threading

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
over, sums = threading.Event(), []


def watch():
    while not over.wait(0.002):
        sums.append(sum(float(p.detach().sum()) for p in model.parameters()))


threading.Thread(target=watch).start()
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
over.set()
habit.done(peer, model)
