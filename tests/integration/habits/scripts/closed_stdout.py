"""Standard output is closed after a line (``| head -1``), and the script goes on printing."""

import habit

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    habit.step(model, optimizer, x, y)
    print(peer.step, flush=True)
habit.done(peer, model)
