"""A moving average that the loop updates, without ``peer.each_step``: each peer has its own."""

import habit
import torch
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        ema.update_parameters(model)
        habit.pause(peer)
habit.done(peer, model)
