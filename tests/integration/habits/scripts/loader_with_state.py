"""A DataLoader with ``state_dict`` and ``load_state_dict``, as torchdata's StatefulDataLoader."""

import habit
from torch.utils.data import DataLoader


class StatefulLoader(DataLoader):
    def state_dict(self):
        return {"position": 0}

    def load_state_dict(self, state):
        pass


peer, model, optimizer = habit.prepared()
loader = peer.shard(StatefulLoader(habit.dataset(), batch_size=4, shuffle=True))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
