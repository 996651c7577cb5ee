"""The pods of ``gossip kubernetes`` as processes of this machine: one is lost and started again. No cluster has seen it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kube import pod, read

WAIT_S = 150.0
SCRIPT = """
import sys, time, torch, gossip
peer = gossip.init()
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
model = torch.nn.Linear(8, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
loader = peer.shard(torch.utils.data.TensorDataset(x, y), batch_size=16)
until = peer.run_dir / "until"
over = False
while not over:
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        time.sleep(0.02)
        optimizer.step()
        over = until.exists() and peer.round >= int(until.read_text())
        if over:
            break
peer.close()
"""


def now(run: Path, peer: int) -> int:
    path = run / f"events-{peer}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    return max([row["round"] for row in rows if row.get("event") == "round"], default=-1)


@pytest.mark.timeout(400)
def test_pods_train_together_and_one_that_is_lost_comes_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["-n", "3", "--image", "i", "--claim", "c", "--name", "t", "--", "--aggregator", "mean", "/shared/train.py"]
    command = [sys.executable, "-m", "gossip.launch.cli", "kubernetes", *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    (container,) = read(text)[1]["spec"]["template"]["spec"]["containers"]
    run, out = tmp_path / "runs" / "t", tmp_path / "out"

    def start(index: int) -> subprocess.Popen[bytes]:
        return pod(container, index, tmp_path, "127.0.0.1", out)

    def wait(what: Callable[[], Any], about: str) -> None:
        until = time.monotonic() + WAIT_S
        while not what():
            assert time.monotonic() < until, f"{about} never came\n{out.read_text()[-4000:]}"
            time.sleep(0.05)  # between two looks, not instead of one

    pods = {index: start(index) for index in range(3)}
    try:
        wait(lambda: all(now(run, peer) >= 5 for peer in pods), "round 5")
        assert all(json.loads((run / "seeds" / f"{peer}.addr").read_text())["key"] for peer in pods), "without keys"
        pods[1].kill()
        pods[1].wait()
        at = now(run, 0)
        wait(lambda: now(run, 0) >= at + 5, "rounds of the others")
        before = now(run, 1)
        pods[1] = start(1)
        wait(lambda: now(run, 1) > before + 5, "rounds of the one that came back")
        (run / "until.new").write_text(str(max(now(run, peer) for peer in pods) + 10))
        (run / "until.new").rename(run / "until")
        assert [one.wait(WAIT_S) for one in pods.values()] == [0, 0, 0], out.read_text()[-4000:]
    finally:
        for one in pods.values():
            one.kill()
            one.wait()
    command = [sys.executable, "-m", "gossip.launch.task_runs", str(run), "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "came to the end: 0, 1, 2" in done.stdout
    assert [row["peer"] for row in json.loads((run / "summary.json").read_text())["rejoins"]] == [1]
