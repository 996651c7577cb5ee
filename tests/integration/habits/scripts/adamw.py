"""AdamW with two groups: biases without weight decay."""

import habit
import torch

model = habit.model()
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ],
    lr=1e-2,
)
habit.run(model, optimizer)
