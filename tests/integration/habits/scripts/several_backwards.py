"""Several losses are propagated one after the other before one step."""

import habit
from torch.nn.functional import mse_loss

peer, model, optimizer = habit.prepared()
for x, y in habit.batches(peer):
    optimizer.zero_grad()
    out = model(x)
    mse_loss(out, y).backward(retain_graph=True)
    (0.1 * out.abs().mean()).backward()
    (1e-3 * sum(p.square().sum() for p in model.parameters())).backward()
    optimizer.step()
habit.done(peer, model)
