"""Workers draw random numbers to augment samples."""

import random

import habit
import torch
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, at):
        x, y = self.samples[at]
        return x + 0.1 * torch.randn(8) + 0.1 * random.random(), y


peer, model, optimizer = habit.prepared()
loader = peer.shard(DataLoader(Augmented(habit.dataset()), batch_size=4, num_workers=1))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
