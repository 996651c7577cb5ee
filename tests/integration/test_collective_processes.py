"""Collective operations of real processes: a peer is killed in the middle of them, and all who live
get the same answers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from command import begin
from effort import effort

SCRIPT = """
import json, random, time
import torch
import gossip

STEPS = 60
peer = gossip.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = peer.prepare(model, optimizer)
pause = random.Random(peer.id)
operations = {
    "mean": lambda: dict(peer.mean(id=peer.id, step=peer.step)),
    "gather": lambda: peer.gather([peer.id]),
    "broadcast": lambda: peer.broadcast({"from": peer.id}),
    "any": lambda: peer.any(peer.id == 1),
    "barrier": lambda: peer.barrier(),
    "save": lambda: peer.save("out/model.safetensors", model.state_dict()),
}
with open(f"answers-{peer.id}", "a", buffering=1) as answers:
    def note(at, name):
        answer = operations[name]()
        print(json.dumps([at, name, answer, peer.answered]), file=answers)

    for step in peer.steps(STEPS):
        x = torch.randn(8, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause.uniform(0.0, 0.02))
        note(step, list(operations)[step % len(operations)])
    note(STEPS, "mean")
    print(json.dumps(["end", peer.step]), file=answers)
"""
PEERS, WAIT_S = 4, 90.0


def answers_of(folder: Path, peer: int) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / f"answers-{peer}").read_text().splitlines()]


def started(folder: Path, rule: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT)
    options = ["-n", str(PEERS), "--run-dir", "runs/r", "--restarts", "1", "--aggregator", rule]
    options += ["-f", "0"] if rule == "mean" else []
    return begin(folder, "run", *options, "train.py")


def wait_for_step(folder: Path, peer: int, step: int, run: subprocess.Popen[str]) -> None:
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and run.poll() is None:
        if (folder / f"answers-{peer}").exists():
            lines = answers_of(folder, peer)
            if lines and lines[-1][0] >= step:
                return
        time.sleep(0.01)
    raise AssertionError(f"peer {peer} did not come to step {step}")


def trainer_of(folder: Path, peer: int) -> int:
    lines = (folder / "runs" / "r" / f"peer-{peer}" / "events.jsonl").read_text().splitlines()
    started = [row for row in map(json.loads, lines) if row.get("event") == "started"]
    return int(started[-1]["trainer_pid"])


@pytest.mark.parametrize("seed", range(effort(1, 20)))
def test_whoever_is_killed_all_who_live_get_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    victim, step = rng.randrange(PEERS), rng.randrange(5, 30)
    rule = ["mean", "suspicion"][seed % 2]
    run = started(tmp_path, rule)
    try:
        wait_for_step(tmp_path, victim, step, run)
        os.kill(trainer_of(tmp_path, victim), signal.SIGKILL)
        said, _ = run.communicate(timeout=WAIT_S)
    finally:
        run.kill()
    assert run.returncode == 0, said
    known: dict[tuple[int, str], Any] = {}
    for peer in range(PEERS):
        *lines, end = answers_of(tmp_path, peer)
        assert end == ["end", 60], said
        for at, name, answer, answered in lines:
            first = known.setdefault((at, name), (answer, answered))
            assert first == (answer, answered), f"step {at}, peer {peer}"
    assert {at for at, _ in known} == set(range(61))
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    final, answered = known[60, "mean"]
    assert final["step"] == 60.0
    if rule == "mean":
        assert final["id"] == pytest.approx(sum(answered) / len(answered))
    else:  # without the largest and the smallest
        assert min(answered) < final["id"] < max(answered)
