"""The script trains in a thread that is not the main thread."""

import threading

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())


def train():
    for _ in peer.epochs(2, save="ckpt", every=10):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            habit.pause(peer)
    habit.done(peer, model)


thread = threading.Thread(target=train)
thread.start()
thread.join()
