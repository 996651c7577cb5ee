"""``gossip drill`` on a live run: what it does to real processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
    options = "run --drills -n 3 --aggregator mean --run-dir runs/out --quiet train.py"
    command = [*CLI, *shlex.split(options)]
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


def test_drills_hit_a_live_run_and_are_recorded(live: Path) -> None:
    out = live / "runs" / "out"
    with following(out) as written:

        def trains(peer: int) -> None:
            before = len(written.rows(f"peer-{peer}/metrics.jsonl"))
            written.until(
                lambda: len(written.rows(f"peer-{peer}/metrics.jsonl")) > before + 3,
                f"steps of peer {peer}",
                60,
            )

        assert drill(live, "kill", "2", "--restart", "500ms").stdout == (
            "drill 1: kill 2, back after 0.5 s\n"
        )
        trains(2)
        assert drill(live, "slow", "0", "--factor", "8", "--for", "100ms").returncode == 0
        ended = written.until(lambda: written.rows("events.jsonl", "fault_over"), "its end", 60)
        assert ended[0]["fault"] == "drill 2: slow:0*8"
        assert drill(live, "partition", "0,1", "2", "--for", "500s").returncode == 0
        written.until(lambda: written.rows("peer-2/events.jsonl", "paused"), "2 to be cut off", 60)
        trains(0)
        assert drill(live, "heal").stdout == "healed: ended drill 3: partition:0,1|2\n"
        trains(2)
        refused = drill(live, "kill", "7")
        assert refused.returncode == 2
        assert "there is no peer 7" in refused.stderr
        trains(1)
        assert drill(live, "leave", "1").returncode == 0
        written.until(
            lambda: any(row["peer"] == 1 for row in written.rows("events.jsonl", "exited")),
            "the end of peer 1",
            60,
        )
        assert "peer 1 has ended" in drill(live, "kill", "1").stderr
        orders = [row["drill"] for row in written.rows("events.jsonl", "drill")]
        assert orders == ["kill", "slow", "partition", "heal", "leave"]
