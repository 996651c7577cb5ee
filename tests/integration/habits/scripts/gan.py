"""A GAN: the loss of the generator sees the discriminator behind its own step."""

import habit
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import gossip

critic = habit.model()
maker = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
peer = gossip.init()
both, _ = peer.prepare(nn.ModuleList([critic, maker]), [of_critic, of_maker])
for x, y in habit.batches(peer):
    of_critic.zero_grad()
    made = maker(x[:, :2])
    (bce(critic(x), 0 * y + 1) + bce(critic(made.detach()), 0 * y)).backward()
    of_critic.step()
    of_maker.zero_grad()
    bce(critic(made), 0 * y + 1).backward()
    of_maker.step()
habit.done(peer, both)
