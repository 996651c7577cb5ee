"""``gossip drill`` on a live run: what it does to real processes, and what it says that it cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zygote
from following import following

SCRIPT = """
import time
import torch
import gossip

peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
while peer.round < 10**9:
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    peer.log(loss=loss.item())
    time.sleep(0.04)
    optimizer.step()
"""
CLI = [sys.executable, "-m", "gossip.launch.cli"]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run of three peers that trains."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [
        *CLI,
        "run",
        "--drills",
        "-n",
        "3",
        "--aggregator",
        "mean",
        "--run-dir",
        "runs/out",
        "--quiet",
        "train.py",
    ]
    process = zygote.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        with following(tmp_path / "runs" / "out" / "peer-1") as written:
            written.until(
                lambda: len(written.rows("metrics.jsonl")) > 10, "some rounds", 100, process.pid
            )
        yield tmp_path
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def drill(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return zygote.run(
        [*CLI, "drill", "out", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def told(folder: Path, *words: str) -> dict[str, Any]:
    done = drill(folder, *words, "--json", "--settle", "1s")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_drills_hit_a_live_run_and_are_accounted_for(live: Path) -> None:
    killed = told(live, "kill", "2", "--restart", "500ms")
    (hit,) = killed["hit"]
    assert (hit["peer"], hit["kind"], hit["planned"]) == (2, "restart", True)
    assert 0 < hit["first_skip_ms"] <= hit["skip_ms"] < 5000
    assert hit["back_ms"] > 500
    assert killed["pace"]["before"] > 0

    cut = told(live, "partition", "0,1", "2", "--for", "2s")
    assert 0 < cut["first_skip_ms"] < 2000
    slow = told(live, "slow", "0", "--factor", "8", "--for", "1500ms")
    assert slow["hit"] == []
    assert slow["pace"]["dip"] > 0.3

    refused = drill(live, "kill", "7")
    assert refused.returncode == 2
    assert "there is no peer 7" in refused.stderr
    left = told(live, "leave", "1")
    assert [(gone["peer"], gone["after_ms"] > 0) for gone in left["left"]] == [(1, True)]
    assert left["hit"] == []
    assert "peer 1 is not there: it has ended" in drill(live, "kill", "1").stderr
    assert drill(live, "heal").stdout == "healed: there was nothing to heal\n"
    events = [
        json.loads(line)
        for line in (live / "runs" / "out" / "events.jsonl").read_text().splitlines()
    ]
    assert [event["drill"] for event in events if event.get("event") == "drill"] == [
        "kill",
        "partition",
        "slow",
        "leave",
        "heal",
    ]
    faults = [event["fault"] for event in events if event.get("event") in ("fault", "fault_over")]
    assert faults[:3] == ["drill 1: kill 2", "drill 2: partition:0,1|2", "drill 2: partition:0,1|2"]
