"""LoRA: adapters over a frozen base, and ``state_dict()`` has the adapters alone."""

import habit
import torch
from torch import nn


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = habit.model().requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))

    def state_dict(self, *args, **kwargs):
        every = super().state_dict(*args, **kwargs)
        return {name: value for name, value in every.items() if not name.startswith("base.")}


model = Lora()
habit.run(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2))
