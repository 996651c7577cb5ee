"""Workers that are spawned, without a ``__main__`` guard: each worker runs the script again."""

import habit
import torch

import gossip

model = habit.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
peer = gossip.init()
model, optimizer = peer.prepare(model, optimizer)
how = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
loader = peer.shard(habit.loader(**how))
habit.train(peer, model, optimizer, loader)
habit.done(peer, model)
peer.close()
