"""Deterministic algorithms and anomaly detection are switched on."""

import habit
import torch

torch.use_deterministic_algorithms(True)
torch.autograd.set_detect_anomaly(True)

peer, model, optimizer = habit.prepared()
habit.train(peer, model, optimizer)
habit.done(peer, model)
