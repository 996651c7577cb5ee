"""The loop sets ``momentum`` from the step of the run."""

import habit

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.param_groups[0]["momentum"] = min(0.95, 0.5 + 0.02 * peer.step)
    habit.step(model, optimizer, x, y)
habit.done(peer, model)
