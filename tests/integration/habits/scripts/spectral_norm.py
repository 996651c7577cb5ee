"""Spectral norm by parametrization: power iterations in the forward pass."""

import habit
from torch.nn.utils.parametrizations import spectral_norm

model = habit.model()
spectral_norm(model[0])
peer, model, optimizer = habit.prepared(model)
habit.train(peer, model, optimizer)
habit.done(peer, model)
