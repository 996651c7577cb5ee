"""ReduceLROnPlateau on the loss of this peer's batch."""

import habit
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler

peer, model, optimizer = habit.prepared()
schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
peer.keep(schedule=schedule)
for x, y in habit.batches(peer):
    loss = mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step(loss)
habit.done(peer, model)
