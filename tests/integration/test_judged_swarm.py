"""Unequal data and a liar among four real processes: a judge with a few mixed samples tells them
apart, where the updates alone do not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from command import gossip, summary_of
from effort import only_long

from gossip.run.telemetry import read_lines
from gossip.vectors.sharding import shard_sizes

PEERS, LIAR, STEPS = 4, 3, 60
BETWEEN = 1_050_000
"""Numbers without a gradient, between the two layers that learn: each shard of the rest has a part
of one."""
ELEMENTS = (12 + 1 + 6) * 64 + 6 + BETWEEN
TRAINER = f"""
import gossip, torch
from torch.nn.functional import cross_entropy

centers = 2 * torch.randn(6, 12, generator=torch.Generator().manual_seed(1))

def draw(classes, count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=generator)]
    return centers[labels] + torch.randn(count, 12, generator=generator), labels

everything = list(range(6))
peer = gossip.init(reference=list(zip(*draw(everything, 300, 2))))


class Idle(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros({BETWEEN}))

    def forward(self, x):
        return x + 0.0 * self.numbers.sum()


model = torch.nn.Sequential(
    torch.nn.Linear(12, 64), Idle(), torch.nn.ReLU(), torch.nn.Linear(64, 6)
)
asked = 0

def judge(batch):
    global asked
    asked += 1
    return cross_entropy(model(batch[0]), batch[1])

optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = peer.prepare(model, optimizer, judge=judge)
own = everything if peer.id == {LIAR} else [2 * peer.id, 2 * peer.id + 1]
for step in peer.steps({STEPS}):
    x, y = draw(own, 32, 1000 * step + peer.id)
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
x, y = draw(everything, 600, 3)
right = (model(x).argmax(dim=1) == y).float().mean()
print(f"accuracy {{float(right):.3f}} asked {{asked}}", flush=True)
peer.close()
"""
SMALL = TRAINER.replace(str(BETWEEN), "1").replace("lr=0.05", "lr=0.2")


def run(folder: Path, fault: str, *words: str, trainer: str = SMALL) -> tuple[str, dict[str, Any]]:
    """What ``gossip run`` with one liar has printed, and the summary."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(trainer)
    options = ("-n", str(PEERS), "-f", "1", "--fault", fault, "--run-dir", "out", *words)
    done = gossip(folder, "run", *options, "train.py")
    return done.stdout + done.stderr, summary_of(folder / "out")


def ends(said: str) -> dict[int, tuple[float, int]]:
    """Each peer's accuracy on data of all kinds, and how often it was asked to judge."""
    found = re.findall(r"(\d)\| accuracy (\S+) asked (\d+)", said)
    assert len(found) == PEERS, said
    return {int(peer): (float(accuracy), int(asked)) for peer, accuracy, asked in found}


def test_a_judge_stops_the_liar_and_keeps_those_who_are_different(tmp_path: Path) -> None:
    """With a reference the rule judges by it, and the first screen says so."""
    assert len(shard_sizes(ELEMENTS, PEERS, whole_vector=True, cross_shard=True)) == 3
    words = ("--reference", "64", "--round-timeout", "20")
    said, summary = run(tmp_path / "judged", f"sign_flip:{LIAR}", *words, trainer=TRAINER)
    assert (
        "judged_clipping: updates are judged by 64 samples (reference_samples are given, and no "
        "aggregator)"
    ) in said
    assert summary["aggregator"] == "judged_clipping"
    assert summary["suspected"] == [LIAR]
    told = ends(said)
    assert min(accuracy for accuracy, _ in told.values()) > 0.95
    rows = read_lines(tmp_path / "judged" / "out" / "commits.jsonl")
    commits = [row for row in rows if "shard" in row]
    assert {commit["shard"] for commit in commits} == {0, 1, 2}, "it is cut in shards"
    for peer in range(LIAR):
        served = {commit["round"] for commit in commits if commit["server"] == peer}
        assert 0 < told[peer][1] <= len(served) + 2, "one gradient for each round that it served"

    said, _ = run(tmp_path / "unjudged", f"sign_flip:{LIAR}", "--aggregator", "suspicion")
    told = ends(said)
    assert max(accuracy for accuracy, _ in told.values()) < 0.8
    assert {asked for _, asked in told.values()} == {0}


@only_long
def test_without_trust_a_liar_is_suspected_and_nobody_locked_up(tmp_path: Path) -> None:
    ways = [("--no-trust", []), ("--trust", [LIAR])]
    for option, locked in ways:
        said, summary = run(
            tmp_path / option, f"nan:{LIAR}", option, "--aggregator", "trimmed_mean"
        )
        assert summary["suspected"] == [LIAR]
        assert summary["quarantined"] == locked
        assert "the rule trimmed_mean does not use it" in said
