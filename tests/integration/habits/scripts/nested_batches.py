"""Batches are nested tuples, lists and dicts."""

import habit
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 288

    def __getitem__(self, at):
        x, y = habit.dataset()[at]
        return (x, [y, {"at": at}])


peer, model, optimizer = habit.prepared()
for batch in habit.batches(peer, DataLoader(Samples(), batch_size=4, shuffle=True)):
    x, (y, _about) = batch
    habit.step(model, optimizer, x, y)
habit.done(peer, model)
