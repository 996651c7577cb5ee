"""``optimizer.step(closure)``: the closure zeroes and propagates."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    peer.log(loss=loss)
habit.done(peer, model)
