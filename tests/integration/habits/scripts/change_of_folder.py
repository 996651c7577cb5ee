"""The script changes its working directory, as hydra does, and saves relative to that."""

import os

import habit
import torch

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
os.makedirs("outputs", exist_ok=True)
os.chdir("outputs")
peer, model, optimizer = habit.prepared(model, optimizer)
habit.train(peer, model, optimizer)
habit.done(peer, model)
