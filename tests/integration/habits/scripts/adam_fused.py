"""Adam in its fused form, with AMSGrad."""

import habit
import torch

model = habit.model()
habit.run(model, torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True, fused=True))
