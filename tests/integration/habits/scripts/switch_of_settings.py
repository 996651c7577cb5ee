"""The loop switches Nesterov momentum and ``maximize`` off and on by the step."""

import habit

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.param_groups[0]["nesterov"] = peer.step >= 15
    optimizer.param_groups[0]["maximize"] = peer.step % 7 == 6
    habit.step(model, optimizer, x, y)
habit.done(peer, model)
