"""A target network that follows every tenth step, and gives the targets."""

from copy import deepcopy

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
target = deepcopy(model).requires_grad_(False)
peer.keep(target=target)


@peer.each_step
def follow():
    if peer.step % 10 == 0:
        target.load_state_dict(model.state_dict())


for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), 0.5 * y + 0.5 * target(x)).backward()
    optimizer.step()
habit.done(peer, model, shared={"target": target})
