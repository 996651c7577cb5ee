"""A training script that goes on until a file names its last round: its first argument, or
``until`` in the run's folder."""

SCRIPT = """
import sys, time, torch, gossip
from pathlib import Path
from sklearn.datasets import load_digits
peer = gossip.init()
bunch = load_digits()
x, y = torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target)
model = torch.nn.Linear(64, 10)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
loader = peer.shard(torch.utils.data.TensorDataset(x, y), batch_size=32)
until = Path(sys.argv[1]) if len(sys.argv) > 1 else peer.run_dir / "until"
over = False
while not over:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        peer.log(loss=loss.item())
        time.sleep(0.02)
        optimizer.step()
        over = until.exists() and peer.round >= int(until.read_text())
        if over:
            break
print("accuracy", (model(x).argmax(dim=1) == y).float().mean().item(), flush=True)
peer.close()
"""
