"""Standard output is closed after a line (``| head -1``), and the script goes on printing."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
    print(peer.step, flush=True)
habit.done(peer, model)
