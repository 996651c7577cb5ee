"""SparseAdam over an embedding with sparse gradients."""

import habit
import torch

model = torch.nn.Embedding(8, 1, sparse=True)
optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
habit.run(model, optimizer, predict=lambda x: model(x[:, 0].abs().long().clamp(max=7)))
