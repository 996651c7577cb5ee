"""BatchNorm with ``momentum=None``: a plain average of all batches."""

import habit
import torch

model = habit.model()
model.insert(1, torch.nn.BatchNorm1d(8, momentum=None))
peer, model, optimizer = habit.prepared(model)
habit.train(peer, model, optimizer)
habit.done(peer, model)
