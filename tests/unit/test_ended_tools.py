"""Long tools of the repository that end before they are done leave nothing behind, and say why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def test_sigterm_ends_the_children_and_removes_the_folder(tmp_path: Path) -> None:
    only = ["--only", "reuses-timer-tokens", "quorum-of-half"]
    command = ["tests/mutants/hunt.py", *only, "--seeds", "2000", "--jobs", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    tool = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        parent, deadline = psutil.Process(tool.pid), time.monotonic() + 60
        while not (children := parent.children(recursive=True)):
            assert time.monotonic() < deadline, "it starts no processes"
            assert tool.poll() is None, tool.communicate()
            time.sleep(0.02)
        assert list(tmp_path.iterdir())
        tool.send_signal(signal.SIGTERM)
        tool.wait(60)
        assert tool.returncode == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
        assert not list(tmp_path.iterdir())
        assert tool.stderr is not None
        assert "Traceback" not in tool.stderr.read()
    finally:
        if tool.poll() is None:
            tool.kill()
            tool.wait()


def test_a_benchmark_whose_launcher_refuses_says_what_that_said(tmp_path: Path) -> None:
    command = [
        "benchmarks/fault_free.py",
        "--peers",
        "2",
        "--numbers",
        "10",
        "--aggregator",
        "meen",
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    tool = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    *said, last = tool.stderr.splitlines()
    assert tool.returncode == 1
    assert "unknown aggregator 'meen'" in "\n".join(said)
    assert last == (
        "a run of 2 peers and 10 numbers has no events.jsonl and no commits.jsonl: "
        "its launcher has ended with exit code 2, its output is above"
    )
    assert not list(tmp_path.iterdir())
