"""Deterministic algorithms and anomaly detection are switched on."""

import habit
import torch

torch.use_deterministic_algorithms(True)
torch.autograd.set_detect_anomaly(True)

habit.run()
