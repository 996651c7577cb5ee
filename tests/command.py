"""The command ``gossip`` for tests, forked from a process that has imported torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import zygote

CLI = [sys.executable, "-m", "gossip.launch.cli"]


def gossip(
    folder: Path, *words: str, code: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``. Fail unless it ends with ``code``; None: with any."""
    done: subprocess.CompletedProcess[str] = zygote.run(
        [*CLI, *words], cwd=folder, capture_output=True, text=True, timeout=250, **options
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def begin(folder: Path, *words: str, **options: Any) -> subprocess.Popen[str]:
    """Start a command in ``folder``, both of whose streams are its ``stdout``."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return zygote.Popen([*CLI, *words], cwd=folder, **streams, **options)


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
