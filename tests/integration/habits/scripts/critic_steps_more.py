"""A WGAN: the critic steps in every batch, the generator in every third."""

import habit
import torch
from torch import nn

import gossip

critic = habit.model()
maker = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8))
of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
of_maker = torch.optim.RMSprop(maker.parameters(), lr=1e-3)
peer = gossip.init()
both, _ = peer.prepare(nn.ModuleList([critic, maker]), [of_critic, of_maker])
loader = peer.shard(habit.loader())
for _ in peer.epochs(2, save="ckpt", every=10):
    for at, (x, _) in enumerate(loader):
        of_critic.zero_grad()
        (critic(maker(x[:, :2]).detach()) - critic(x)).mean().backward()
        of_critic.step()
        if at % 3 == 2:
            of_maker.zero_grad()
            (-critic(maker(x[:, :2]))).mean().backward()
            of_maker.step()
        habit.pause(peer)
habit.done(peer, both)
