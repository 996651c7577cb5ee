"""Activation checkpointing: the forward pass is computed again."""

import habit
import torch
from torch.utils.checkpoint import checkpoint

model = habit.model()
model.insert(2, torch.nn.Dropout(0.3))
habit.run(model, predict=lambda x: checkpoint(model, x, use_reentrant=False))
