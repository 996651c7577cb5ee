"""The loop sets ``lr`` from the step of the run."""

import habit

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + peer.step)
    habit.step(model, optimizer, x, y)
habit.done(peer, model)
