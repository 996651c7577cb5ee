"""A moving average of the weights: ``peer.each_step`` and ``peer.keep``."""

import habit
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
peer.keep(ema=ema)
peer.each_step(lambda: ema.update_parameters(model))
habit.train(peer, model, optimizer)
habit.done(peer, model, counts={"n": ema.n_averaged}, shared={"ema": ema.module})
