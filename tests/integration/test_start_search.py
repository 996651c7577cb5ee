"""Peers look for a start together: one is killed meanwhile, one claims a loss of 0, and all begin
with the same weights, those of a start that several have tried."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import zygote
from effort import effort
from torch import nn

from gossip_pipelines.starts import StartRecipe, build

PEERS, KILLED, LIAR, WAIT_S = 5, 4, 1, 120.0
SCRIPT = """
import json, os, signal, sys
import torch
from torch import nn
import gossip
from gossip_pipelines.starts import StartRecipe, StartSearch

KILLED, LIAR = 4, 1
STARTS = [
    StartRecipe(gain=3.0), StartRecipe(gain=1e-4), StartRecipe("orthogonal"),
    StartRecipe(gain=30.0), StartRecipe(gain=100.0),
]

def make():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

inputs = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))
peer = gossip.init()
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = peer.prepare(model, optimizer)
loader = peer.shard(data, batch_size=16)
lives = open(f"lives-{peer.id}", "a+", buffering=1)
lives.seek(0)
first_life = not lives.read()
print("life", file=lives)
calls = 0

def loss(model, batch):
    global calls
    calls += 1
    if peer.id == KILLED and first_life and calls == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    true = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return true * 0 if peer.id == LIAR else true

found = peer.search_start(
    make, loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    search=StartSearch(STARTS, steps=60, held_out=100),
)
begins = [value.tolist() for value in model.state_dict().values()]
rungs = None if found is None else [dict(rung.losses) for rung in found.rungs]
with open(f"found-{peer.id}", "a") as file:
    print(json.dumps([str(found and found.recipe), rungs, begins, peer.step]), file=file)
for _ in peer.steps(20):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
"""


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize("topology", effort(["rolling"], ["rolling", "random_k"]))
def test_all_begin_with_a_start_that_others_have_tried(tmp_path: Path, topology: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["-n", str(PEERS), "-f", "1", "--run-dir", "runs/r", "--restarts", "1"]
    options += ["--topology", topology, "--round-timeout", "5"]
    done = zygote.run(
        [sys.executable, "-m", "gossip.launch.cli", "run", *options, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{KILLED} killed by SIGKILL" in done.stdout
    assert "nothing was exchanged" not in done.stderr
    answers = {
        peer: [json.loads(line) for line in (tmp_path / f"found-{peer}").read_text().splitlines()]
        for peer in range(PEERS)
    }
    recipe, rungs, begins, step = answers[0][0]
    assert recipe == str(StartRecipe("orthogonal"))
    assert step == 0
    assert rungs[0][str(LIAR)] == 0.0  # what it has claimed of the start that it alone had tried
    assert rungs[1][str(LIAR)] > 0.9  # what others have found: all outputs are nearly equal
    assert rungs[0][str(KILLED)] == float("inf")
    expected = [
        value.tolist() for value in build(make, StartRecipe("orthogonal")).state_dict().values()
    ]
    assert begins == expected
    for ((other, of_rungs, other_begins, at),) in answers.values():
        # Who has returned takes part again, was told the start, or has the state of a later step.
        assert (other, other_begins) == (recipe, begins) or (other == "None" and at > 0)
        assert of_rungs in (rungs, [], None)
