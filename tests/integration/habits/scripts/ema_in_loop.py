"""A moving average that the loop updates, without ``peer.each_step``: each peer has its own."""

import habit
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

peer, model, optimizer = habit.prepared()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
for x, y in habit.batches(peer):
    habit.step(model, optimizer, x, y)
    ema.update_parameters(model)
habit.done(peer, model)
