"""A bfloat16 layer between float32 layers."""

import habit

model = habit.model()
model[2].bfloat16()
habit.run(model, predict=lambda x: model[2](model[:2](x).bfloat16()).float())
