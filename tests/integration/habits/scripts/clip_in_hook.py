"""A hook of the optimizer clips what the swarm made of the gradients."""

import habit
from torch.nn.utils import clip_grad_norm_

peer, model, optimizer = habit.prepared()
optimizer.register_step_pre_hook(lambda *_: clip_grad_norm_(model.parameters(), 0.1) and None)
habit.train(peer, model, optimizer)
habit.done(peer, model)
