"""The script forks a child in the middle of the run, which ends by ``os._exit(0)``."""

import os

import habit

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    habit.step(model, optimizer, x, y)
    if peer.step in (8, 30):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
habit.done(peer, model)
