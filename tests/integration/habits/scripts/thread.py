"""The script trains in a thread that is not the main thread."""

import threading

import habit

peer, model, optimizer = habit.prepared()
loader = peer.shard(habit.loader())


def train():
    for _ in peer.epochs(2, save="ckpt", every=10):
        for x, y in loader:
            habit.step(model, optimizer, x, y)
            habit.pause(peer)
    habit.done(peer, model)


thread = threading.Thread(target=train)
thread.start()
thread.join()
