"""Benchmarks that end before they are done leave nothing behind, and say why."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_benchmark_whose_launcher_refuses_says_what_that_said(tmp_path: Path) -> None:
    command = shlex.split("benchmarks/fault_free.py --peers 2 --numbers 10 --aggregator meen")
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
        "a run of 2 peers and 10 parameters has no events.jsonl and no commits.jsonl: "
        "its launcher has ended with exit code 2, its output is above"
    )
    assert not list(tmp_path.iterdir())
