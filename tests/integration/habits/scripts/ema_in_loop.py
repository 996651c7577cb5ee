"""A moving average that the loop updates, without ``peer.each_step``: each peer has its own."""

import habit
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

peer, model, optimizer = habit.prepared()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    ema.update_parameters(model)
habit.done(peer, model)
