"""Real peers with local steps, one of which is four times slower: it takes fewer, is on time, and
all end at the same step with the same parameters."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import zygote

SCRIPT = """
import hashlib, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import gossip

EPOCHS = 4
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
        time.sleep(0.02)
        optimizer.step()
        bodies += 1
        if scheduler.last_epoch < EPOCHS * len(loader):
            scheduler.step()
digest = hashlib.blake2b(digest_size=8)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"ended {bodies} {peer.step} {scheduler.last_epoch} {digest.hexdigest()}", flush=True)
"""
ENDED = re.compile(r"(\d)\| ended (\d+) (\d+) (\d+) (\w+)")
PEERS, LOCAL_STEPS, STEPS, SLOW = 3, 10, 120, 2


def test_a_slow_peer_takes_fewer_local_steps_and_every_sample_is_counted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "-n", str(PEERS), "--run-dir", "out", "--aggregator", "mean", "--outer", "mean"]
    words += ["--local-steps", str(LOCAL_STEPS), "--fault", f"slow:{SLOW}*4", "train.py"]
    done = zygote.run(
        [sys.executable, "-m", "gossip.launch.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = {int(peer): rest for peer, *rest in ENDED.findall(done.stdout)}
    assert sorted(ended) == [0, 1, 2]
    assert {(step, scheduled) for _, step, scheduled, _ in ended.values()} == {
        (str(STEPS), str(STEPS))
    }
    assert len({digest for *_, digest in ended.values()}) == 1
    bodies = {peer: int(rest[0]) for peer, rest in ended.items()}
    assert bodies[SLOW] < min(bodies[0], bodies[1])

    rows = map(json.loads, (tmp_path / "out" / "commits.jsonl").read_text().splitlines())
    rounds = [row for row in rows if "contributors" in row]
    used = [{each["peer"]: each["samples"] for each in row["contributors"]} for row in rounds]
    took_part = [each for each in used if SLOW in each]
    # The first round has no deadline yet: the slow peer may be too late in it.
    assert len(took_part) >= len(used) / 2
    assert sum(each[SLOW] < max(each.values()) for each in took_part) >= len(took_part) / 2
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    counted = summary["samples"]
    assert counted["twice"] == 0
    assert counted["once"] == sum(sum(each.values()) for each in used)
    assert summary["participation"]["mean"] > 0.5
