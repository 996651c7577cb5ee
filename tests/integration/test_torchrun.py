"""Ranks of torchrun as peers: by its variables alone, and under the real one,
whose death they notice."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import zygote
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gossip.launch.report import run_state
from gossip.launch.report.top import TopView

SCRIPT = """
import json, os, sys, torch, gossip
peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
while peer.round < int(sys.argv[1]):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(json.dumps([peer.id, os.getpid(), peer.round, float(model.weight.sum())]), flush=True)
peer.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    # torchrun asks for names of hosts; where nobody answers such questions each takes ten
    # seconds otherwise.
    return {
        **os.environ,
        "GOSSIP_AGGREGATOR": "mean",
        "RES_OPTIONS": "timeout:1 attempts:1",
        **more,
    }


def test_processes_with_variables_of_torch_distributed_are_peers_of_one_run(folder: Path) -> None:
    places = [{"RANK": str(r), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} for r in (1, 0)]
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "GOSSIP_TRACK": "tensorboard"}
    words = [sys.executable, "train.py", "20"]
    pipes: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    started = [
        zygote.Popen(words, cwd=folder, env=environment(**place, **address), **pipes)
        for place in places
    ]
    ended = [process.communicate(timeout=200) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    said = sorted(json.loads(out) for out, _ in ended)
    assert [row[0] for row in said] == [0, 1]
    assert said[0][2:] == said[1][2:] == [20, said[0][3]]
    run = folder / "runs" / "torchrun-localhost-29500"
    assert f"gossip: 2 peers, one for each task of torchrun, in {run}\n" in ended[1][1]
    assert {path.name for path in run.iterdir()} >= {
        "config.json",
        "environment.json",
        "seeds",
        "peer-0",
        "peer-1",
    }
    state = run_state.RunState(run)
    assert (state.state, state.outcome.exit_code, state.alive) == ("ended", 0, None)
    assert state.round in range(1, 21), "up to the last reported round: not every round is reported"
    assert TopView(run).to_json()["step"] == 20
    assert tracked_rounds(run) == list(range(20)), "by the tracker that GOSSIP_TRACK names"
    # The same once more: nobody said that it is another run.
    again = zygote.run(
        words,
        cwd=folder,
        env=environment(**places[1], **address),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert again.returncode != 0
    assert "peer 0 of the run" in again.stderr
    assert "hint: give another torchrun --rdzv-id" in again.stderr


def tracked_rounds(run: Path) -> list[int]:
    """Rounds of the swarm's curves in TensorBoard, once the tracker has said that it is done."""
    until, log = time.monotonic() + 100, run / "tracker-tensorboard.log"
    while "were exported" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)  # between two looks, not instead of one
    read = EventAccumulator(str(run / "tensorboard"), {"scalars": 0})
    read.Reload()
    return [each.step for each in read.Scalars("swarm/contributors")]


def test_when_torchrun_is_killed_its_ranks_leave(folder: Path) -> None:
    options = "--local-addr 127.0.0.1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id killed"
    words = [sys.executable, "-m", "torch.distributed.run", *shlex.split(options)]
    words += ["--rdzv-endpoint", "127.0.0.1:0", "train.py", "1000000000"]
    with (folder / "out").open("wb") as out:
        agent = subprocess.Popen(
            words, cwd=folder, env=environment(), stdout=out, stderr=out, start_new_session=True
        )
    try:
        events = [
            folder / "runs" / "torchrun-killed" / f"peer-{peer}" / "events.jsonl" for peer in (0, 1)
        ]
        until = time.monotonic() + 200
        while not all(path.exists() and '"event":"round"' in path.read_text() for path in events):
            assert agent.poll() is None, (folder / "out").read_text()[-3000:]
            assert time.monotonic() < until, (folder / "out").read_text()[-3000:]
            time.sleep(0.1)  # between two looks, not instead of one
        assert run_state.RunState(folder / "runs" / "torchrun-killed").state == "running"
        ranks = psutil.Process(agent.pid).children(recursive=True)
        assert len(ranks) >= 4, "two trainers and their nodes"
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    _, left = psutil.wait_procs(ranks, timeout=60)
    assert left == []
    assert run_state.RunState(folder / "runs" / "torchrun-killed").over
