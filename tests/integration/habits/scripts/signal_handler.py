"""The script has a handler of its own for SIGTERM."""

import signal

import habit
import torch

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
signal.signal(signal.SIGTERM, lambda *_: print("stop"))
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model, counts={"kept": callable(signal.getsignal(signal.SIGTERM))})
