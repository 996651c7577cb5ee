"""A DataLoader with ``state_dict`` and ``load_state_dict``, as torchdata's StatefulDataLoader."""

import habit
import torch
from torch.utils.data import DataLoader

import gossip


class StatefulLoader(DataLoader):
    def state_dict(self):
        return {"position": 0}

    def load_state_dict(self, state):
        pass


model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(StatefulLoader(habit.dataset(), batch_size=4, shuffle=True))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
