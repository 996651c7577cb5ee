"""A buffer whose shape changes: the inputs that were seen last."""

import habit
import torch

model = habit.model()
model.register_buffer("seen", torch.zeros(0, 8))

peer, model, optimizer = habit.prepared(model)
for x, y in habit.batches(peer):
    model.seen = torch.cat([model.seen, x.detach()])[-(4 + peer.step) :]
    habit.step(model, optimizer, x, y)
habit.done(peer, model)
