"""A run of a script that trains over a sharded loader with a learning-rate schedule, and what each
peer says at its end."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zygote

SCRIPT = """
import hashlib, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import gossip

EPOCHS = {epochs}
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
        time.sleep({sleep_s})
        optimizer.step()
        bodies += 1
        if scheduler.last_epoch < EPOCHS * len(loader):
            scheduler.step()
    {after_epoch}
digest = hashlib.blake2b(digest_size=8)
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"ended {{bodies}} {{peer.step}} {{scheduler.last_epoch}} {{digest.hexdigest()}}", flush=True)
"""
ENDED = re.compile(r"(\d)\| ended (\d+) (\d+) (\d+) (\w+)")


@dataclass(frozen=True)
class EndedRun:
    """What is left of a run.

    Attributes:
        bodies: How often each peer went through its loop.
        rounds: The rows of commits.jsonl that have contributors.
    """

    bodies: dict[int, int]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]


def run(folder: Path, script: str, *words: str, peers: int, steps: int) -> EndedRun:
    """Runs ``script`` under the rule mean: every peer ends at ``steps`` with the same parameters,
    and each sample counts once."""
    (folder / "train.py").write_text(script)
    started = ["run", "-n", str(peers), "--run-dir", "out", "--aggregator", "mean", *words]
    done = zygote.run(
        [sys.executable, "-m", "gossip.launch.cli", *started, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = {int(peer): rest for peer, *rest in ENDED.findall(done.stdout)}
    assert sorted(ended) == list(range(peers)), done.stdout
    at_end = {(step, scheduled) for _, step, scheduled, _ in ended.values()}
    assert at_end == {(str(steps), str(steps))}
    assert len({digest for *_, digest in ended.values()}) == 1
    rows = map(json.loads, (folder / "out" / "commits.jsonl").read_text().splitlines())
    rounds = [row for row in rows if "contributors" in row]
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["samples"]["twice"] == 0
    used = [each["samples"] for row in rounds for each in row["contributors"]]
    assert summary["samples"]["once"] == sum(used)
    return EndedRun({peer: int(rest[0]) for peer, rest in ended.items()}, rounds, summary)
