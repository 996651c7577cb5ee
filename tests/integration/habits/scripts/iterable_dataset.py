"""An ``IterableDataset``: each peer reads a part of the stream."""

import habit
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(3):
            yield from habit.dataset()


peer, model, optimizer = habit.prepared()
loader = iter(peer.shard(DataLoader(Stream(), batch_size=4)))
for _ in peer.steps(habit.STEPS, save="ckpt", every=10):
    x, y = next(loader)
    habit.step(model, optimizer, x, y)
    habit.pause(peer)
habit.done(peer, model)
