"""The script has options of its own, among them ``-n`` and ``--rounds``."""

from argparse import ArgumentParser

import habit
import torch
from torch.nn.functional import mse_loss

import gossip

parser = ArgumentParser()
parser.add_argument("-n", type=int)
parser.add_argument("--rounds", type=int)
options = parser.parse_args()

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=options.n / 100, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        habit.pause(peer)
habit.done(peer, model, counts={"n": options.n, "rounds": options.rounds})
