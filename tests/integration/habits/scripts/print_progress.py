"""The script prints a progress line with carriage returns, as tqdm does."""

import sys

import habit

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    habit.step(model, optimizer, x, y)
    sys.stderr.write(f"\r{peer.step} steps")
habit.done(peer, model)
