"""The script has options of its own, among them ``-n`` and ``--rounds``."""

from argparse import ArgumentParser

import habit
import torch

parser = ArgumentParser()
parser.add_argument("-n", type=int)
parser.add_argument("--rounds", type=int)
options = parser.parse_args()

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=options.n / 100, momentum=0.9)
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model, counts={"n": options.n, "rounds": options.rounds})
