"""Real peers that compute beside rounds, one of which is killed and comes back: all end at the same
step with the same parameters, and each sample counts once."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import zygote

SCRIPT = """
import hashlib
import torch
from torch.utils.data import DataLoader, TensorDataset
import gossip

EPOCHS = 6
peer = gossip.init()
torch.manual_seed(0)
data = TensorDataset(torch.randn(360, 6), torch.arange(360) % 3)
loader = peer.shard(DataLoader(data, batch_size=4))
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.1, total_steps=EPOCHS * len(loader)
)
model, optimizer = peer.prepare(model, optimizer)
peer.keep(scheduler=scheduler)
bodies = 0
for _ in peer.epochs(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        bodies += 1
        if scheduler.last_epoch < EPOCHS * len(loader):
            scheduler.step()
    peer.mean(loss=0.0)
    assert peer.step % len(loader) == 0
digest = hashlib.blake2b(digest_size=8)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"ended {bodies} {peer.step} {scheduler.last_epoch} {digest.hexdigest()}", flush=True)
"""
ENDED = re.compile(r"(\d)\| ended (\d+) (\d+) (\d+) (\w+)")
PEERS, STEPS, KILLED = 3, 180, 2


def test_peers_that_compute_beside_rounds_end_alike(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "-n", str(PEERS), "--run-dir", "out", "--aggregator", "mean", "--overlap", "1"]
    words += ["--fault", f"restart:{KILLED}@40+0.1s", "train.py"]
    done = zygote.run(
        [sys.executable, "-m", "gossip.launch.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = {int(peer): rest for peer, *rest in ENDED.findall(done.stdout)}
    assert sorted(ended) == [0, 1, 2], done.stdout
    assert {(step, scheduled) for _, step, scheduled, _ in ended.values()} == {
        (str(STEPS), str(STEPS))
    }
    assert len({digest for *_, digest in ended.values()}) == 1
    rows = map(json.loads, (tmp_path / "out" / "commits.jsonl").read_text().splitlines())
    used = [
        each["samples"] for row in rows if "contributors" in row for each in row["contributors"]
    ]
    counted = json.loads((tmp_path / "out" / "summary.json").read_text())["samples"]
    assert counted["twice"] == 0
    assert counted["once"] == sum(used)
