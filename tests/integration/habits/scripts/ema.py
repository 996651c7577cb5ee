"""A moving average of the weights: ``peer.each_step`` and ``peer.keep``."""

import habit
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

peer, model, optimizer = habit.prepared()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
peer.keep(ema=ema)
peer.each_step(lambda: ema.update_parameters(model))
habit.train(peer, model, optimizer)
habit.done(peer, model, counts={"n": ema.n_averaged}, shared={"ema": ema.module})
