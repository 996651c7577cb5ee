"""Workers that are spawned, in a script with a ``__main__`` guard."""

import habit
import torch

import gossip


def main():
    model = habit.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    how = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
    loader = peer.shard(habit.loader(**how))
    for _ in peer.epochs(2, save="ckpt", every=10):
        for x, y in loader:
            habit.step(model, optimizer, x, y)
            habit.pause(peer)
    habit.done(peer, model)
    peer.close()


if __name__ == "__main__":
    main()
