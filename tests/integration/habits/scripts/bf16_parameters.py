"""All parameters are bfloat16."""

import habit

model = habit.model().bfloat16()
peer, model, optimizer = habit.prepared(model)
habit.train(peer, model, optimizer, predict=lambda x: model(x.bfloat16()).float())
habit.done(peer, model)
