"""Weight norm by parametrization."""

import habit
from torch.nn.utils.parametrizations import weight_norm

model = habit.model()
weight_norm(model[0])
habit.run(model)
