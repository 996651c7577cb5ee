"""A bfloat16 layer between float32 layers."""

import habit

model = habit.model()
model[2].bfloat16()
peer, model, optimizer = habit.prepared(model)
habit.train(peer, model, optimizer, predict=lambda x: model[2](model[:2](x).bfloat16()).float())
habit.done(peer, model)
