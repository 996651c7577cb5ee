"""All parameters are bfloat16."""

import habit

model = habit.model().bfloat16()
habit.run(model, predict=lambda x: model(x.bfloat16()).float())
