"""What benchmarks of whole runs share: their options, where a run goes, ``gossip demo`` as one of
them, and the last word."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GOSSIP = [sys.executable, "-m", "gossip.launch.cli"]


def parser(doc: str | None, peers: int, seed: str) -> argparse.ArgumentParser:
    """With ``--peers``, ``--seed``, ``--into`` and ``--json``. ``seed``: of what."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-n", "--peers", type=int, default=peers)
    made.add_argument("--seed", type=int, default=0, help=seed)
    made.add_argument(
        "--into", type=Path, help="folder for the runs; a temporary one when left out"
    )
    made.add_argument("--json", type=Path, help="file for the numbers")
    return made


@contextmanager
def folder(into: Path | None) -> Iterator[Path]:
    """Where the runs go: a folder that is kept, or one that is not."""
    if into is None:
        with tempfile.TemporaryDirectory(prefix="gossip-benchmark-") as scratch:
            yield Path(scratch)
    else:
        into.mkdir(parents=True, exist_ok=True)
        yield into


def conclude(numbers: dict[str, Any], into: Path | None, is_wrong: object) -> int:
    """Writes the numbers where ``--json`` says. Returns the exit code."""
    if into is not None:
        into.write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    return 1 if is_wrong else 0


def demo(run: Path, peers: int, rounds: int, faults: Sequence[str], *words: str) -> dict[str, Any]:
    """The summary of one ``gossip demo --only`` with just these faults. Raises:
    SystemExit: It left none."""
    command = [
        *GOSSIP,
        "demo",
        "--only",
        "--json",
        "-n",
        str(peers),
        "--rounds",
        str(rounds),
        "--run-dir",
        str(run),
        *words,
    ]
    command += [word for fault in faults for word in ("--fault", fault)]
    none = {**os.environ, "GOSSIP_FAULTS": ""}  # else those of the demo, where none is given
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=none)
    if not (run / "summary.json").exists():
        raise SystemExit(f"gossip demo ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return summary_of(run)


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text("utf-8"))
    return found
