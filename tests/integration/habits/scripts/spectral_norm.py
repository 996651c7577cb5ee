"""Spectral norm by parametrization: power iterations in the forward pass."""

import habit
from torch.nn.utils.parametrizations import spectral_norm

model = habit.model()
spectral_norm(model[0])
habit.run(model)
