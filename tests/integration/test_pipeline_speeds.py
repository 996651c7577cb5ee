"""Members of a stage that differ in speed, as real peers; and a profile that was not true."""

from __future__ import annotations

from pathlib import Path

import torch
from command import gossip

from gossip.run.telemetry import read_lines
from gossip.testing import TimedLayer
from gossip_pipelines.planning import (
    PipelinePlan,
    PlannedStage,
    model_of,
    walk_without_data,
    write_plan,
)

SCRIPT = """
import torch
import gossip
from gossip.testing import TimedLayer

peer = gossip.init()
layers = [TimedLayer(0.002), TimedLayer(0.03, speed=3.0 if peer.id == 2 else 1.0)]
x = torch.zeros(8, 4)
pipe = peer.pipeline(
    layers, x[:1], loss=torch.nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
for step in peer.steps(10):
    pipe.step(x, x)
"""
STAGES = (
    PlannedStage((0, 0), ("a",), (0.006,)),
    PlannedStage((1, 1), ("b", "c"), (0.03, 0.03)),  # b takes three times as long
)


def run(folder: Path) -> str:
    """What the launcher has shown."""
    walked = walk_without_data([TimedLayer(0.002), TimedLayer(0.03)], torch.zeros(1, 4))
    model = model_of([each.signature for each in walked])
    (folder / "plan.toml").write_text(write_plan(PipelinePlan(model, 8, 1, 1, 0.2, STAGES)))
    (folder / "train.py").write_text(SCRIPT)
    done = gossip(folder, "run", "--plan", "plan.toml", "--run-dir", "out", "train.py")
    return done.stdout + done.stderr


def test_the_slow_member_gets_less_and_is_named_as_slower_than_its_profile(tmp_path: Path) -> None:
    shown = run(tmp_path)
    rows = [row for row in read_lines(tmp_path / "out/commits.jsonl") if row.get("stage") == 1]
    dealt = {
        row["round"]: {each["peer"]: len(each["micro_batches"]) for each in row["contributors"]}
        for row in rows
    }
    slow, fast = (sum(dealt[at].get(peer, 0) for at in range(1, 10)) for peer in (1, 2))
    assert slow + fast == 8 * 9
    assert fast > 1.5 * slow > 0
    told = list(read_lines(tmp_path / "out/events.jsonl"))
    found = [row for row in told if row.get("event") == "unlike_profile" and row["subject"] == 1]
    assert found, "a member of its stage has said so"
    assert all(row["measured_us"] > 1.5 * row["predicted_us"] for row in found)
    lines = [line for line in shown.splitlines() if "! peer 1 takes" in line]
    assert len(lines) == 1, shown
