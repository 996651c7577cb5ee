"""What users write around a step, all of it at once, on real peers: docs/training_loop.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

from command import gossip

SCRIPT = """
import hashlib
import os
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gossip

torch.manual_seed(0)
x = torch.randn(600, 8)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
hidden = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()
model = nn.Sequential(*hidden, nn.Linear(16, 4))
early = [*model[:2].parameters(), *model[3].parameters()]
optimizers = [
    torch.optim.SGD(early, lr=0.05, momentum=0.9, weight_decay=1e-2),
    torch.optim.AdamW(model[5].parameters(), lr=0.01),
]
peer = gossip.init()
model, optimizers = peer.prepare(model, optimizers)
loader = peer.shard(DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True), accumulate=4)


def clip(*_):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


for optimizer in optimizers:
    optimizer.register_step_pre_hook(clip)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.98)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 + peer.id))


marks = open("steps", "a")


def others_steps():
    return os.path.getsize("steps")


def digest(tensors):
    content = b"".join(t.detach().numpy().tobytes() for t in tensors)
    return hashlib.blake2b(content, digest_size=8).hexdigest()


steps, frozen = 0, ""
for epoch in peer.epochs(5):
    if epoch >= 2:  # one that sleeps may miss the beginning of an epoch
        model[3].requires_grad_(False)
        frozen = frozen or digest(model[3].parameters())
    for i, (xs, ys) in enumerate(loader):
        last = (i + 1) % 4 == 0
        loss = nn.functional.cross_entropy(model(xs), ys) / 4
        if peer.id == 1 and last and steps % 5 == 3:
            loss = loss * float("inf")
        if not last:
            with peer.no_sync():
                scaler.scale(loss).backward()
            continue
        scaler.scale(loss).backward()
        if peer.id == 2 and steps in (5, 15):
            until = others_steps() + 5
            while others_steps() < until:  # asleep, for as long as some rounds of the others take
                time.sleep(0.01)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        steps += 1
        if peer.id == 0:
            marks.write("+")
            marks.flush()
kept = frozen == digest(model[3].parameters())
statistics = digest(model.buffers())
torch.optim.swa_utils.update_bn(DataLoader(TensorDataset(x, y), batch_size=50), model)
model.eval()
weights, buffers = digest(model.parameters()), digest(model.buffers())
facts = [weights, statistics, buffers, kept, steps, scaler.get_scale()]
print("facts", *facts, float((model(x).argmax(1) == y).float().mean()), flush=True)
"""


def test_everything_that_users_write_around_a_step_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("run", "-n", "3", "--aggregator", "mean", "--run-dir", "out", "train.py")
    done = gossip(tmp_path, *words)
    facts = {
        int(peer): line.split()
        for peer, line in re.findall(r"(\d)\| facts (.*)", done.stdout + done.stderr)
    }
    assert sorted(facts) == [0, 1, 2]
    parameters, statistics, refreshed, kept, steps, scales, accuracies = zip(
        *facts.values(), strict=True
    )
    assert len(set(parameters)) == 1, (
        "one peer slept with its scheduler behind, another overflowed: all replicas are the same"
    )
    assert len(set(statistics)) == 3, "BatchNorm's running statistics are everybody's own"
    assert len(set(refreshed)) == 1, "until update_bn"
    assert set(kept) == {"True"}, "what was frozen stayed where it was"
    assert int(facts[2][4]) < int(facts[0][4]), "the sleeper missed rounds"
    assert len(set(steps)) > 1
    assert len(set(scales)) == 3
    assert len(set(accuracies)) == 1
    assert float(accuracies[0]) > 0.5
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["status"], summary["replicas_identical"]) == ("finished", True)
    left = summary["samples"]["never"]  # of the rounds that one slept through, and of overflows
    assert summary["samples"] == {"once": 5 * 600 - left, "twice": 0, "never": left}
    metrics = (tmp_path / "out" / "peer-1" / "metrics.jsonl").read_text()
    assert metrics.count('"skipped":"overflow"') >= 3
