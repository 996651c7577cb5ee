"""Activation checkpointing: the forward pass is computed again."""

import habit
import torch
from torch.utils.checkpoint import checkpoint

model = habit.model()
model.insert(2, torch.nn.Dropout(0.3))
peer, model, optimizer = habit.prepared(model)
habit.train(peer, model, optimizer, predict=lambda x: checkpoint(model, x, use_reentrant=False))
habit.done(peer, model)
