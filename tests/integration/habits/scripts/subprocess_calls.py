"""The script starts ``nvidia-smi``-like commands by ``subprocess`` as it trains."""

import subprocess

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    if peer.step in (8, 30):
        subprocess.run(["true"], check=True)
habit.done(peer, model)
