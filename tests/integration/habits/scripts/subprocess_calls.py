"""The script starts ``nvidia-smi``-like commands by ``subprocess`` as it trains."""

import subprocess

import habit

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    habit.step(model, optimizer, x, y)
    if peer.step in (8, 30):
        subprocess.run(["true"], check=True)
habit.done(peer, model)
