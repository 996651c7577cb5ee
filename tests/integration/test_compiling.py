"""Two peers with torch.compile: compiling is not slowness, and nothing is compiled twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from command import gossip

from gossip.run.telemetry import read_lines

SCRIPT = """
import json
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gossip

graphs, sizes = 0, set()


def backend(graph, inputs):
    global graphs
    graphs += 1
    time.sleep(float(sys.argv[1]) if peer.id == 1 else 0)
    return graph.forward


peer = gossip.init()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model = torch.compile(model, backend=backend)
model, optimizer = peer.prepare(model, optimizer)
x = torch.randn(1000, 8)
loader = peer.shard(DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=10, shuffle=True))
for epoch in peer.epochs(2):
    for inputs, targets in loader:
        sizes.add(len(inputs))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
print("facts", json.dumps({"graphs": graphs, "sizes": sorted(sizes), "rounds": peer.round}))
"""
TIMEOUT_S = 2.0
COMPILES_S = 3 * TIMEOUT_S


def train(folder: Path) -> tuple[list[dict[str, object]], Counter[str]]:
    """What each peer found, and how often each event was."""
    (folder / "train.py").write_text(SCRIPT)
    options = ("-n", "2", "--round-timeout", str(TIMEOUT_S), "--run-dir", "out")
    done = gossip(folder, "run", *options, "train.py", str(COMPILES_S))
    said = done.stdout + done.stderr
    facts = [json.loads(found) for found in re.findall(r"\d\| facts (.*)", said)]
    assert len(facts) == 2, said
    rows = read_lines(folder / "out" / "events.jsonl")
    return facts, Counter(str(row.get("event")) for row in rows)


def test_a_peer_that_compiles_for_long_is_waited_for_and_keeps_its_batches(tmp_path: Path) -> None:
    """Three times as long as a round may take. The peer that has compiled is not held for slow."""
    compiled, events = train(tmp_path)
    assert compiled == [{"graphs": 1, "sizes": [10], "rounds": 100}] * 2
    held = {name: events[name] for name in ("late", "skip", "share", "suspect", "quarantine")}
    assert held == dict.fromkeys(held, 0)
