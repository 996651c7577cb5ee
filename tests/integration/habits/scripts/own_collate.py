"""A ``collate_fn`` of the script's own, which pads."""

import habit
import torch
from torch.nn.utils.rnn import pad_sequence


def collate(samples):
    xs = pad_sequence([x[: 5 + at % 4] for at, (x, _) in enumerate(samples)], batch_first=True)
    return xs[:, :5], torch.stack([y for _, y in samples])


model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
peer, model, optimizer = habit.prepared(model)
loader = peer.shard(habit.loader(collate_fn=collate))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
