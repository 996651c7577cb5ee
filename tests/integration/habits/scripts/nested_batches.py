"""Batches are nested tuples, lists and dicts."""

import habit
from torch.nn.functional import mse_loss
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
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
habit.done(peer, model)
