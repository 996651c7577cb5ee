"""Faults that a node carries out on itself: real processes, really killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import zygote

VICTIM = """
import sys, pathlib
from gossip.faults.plan import parse
from gossip.inject.process import FaultInjector
from gossip.run.journal import Journal
run = pathlib.Path(sys.argv[1])
peer, incarnation = int(sys.argv[2]), int(sys.argv[3])
journal = Journal(peer, run / f"peer-{peer}")
saboteur = FaultInjector(parse(sys.argv[5:]), peer, incarnation, run, journal)
for r in range(10):
    saboteur.reached(r)
    if sys.argv[4] == "server":
        saboteur.serves(r)
print("alive")
"""


def victim(
    run: Path, peer: int, incarnation: int, serving: str, *faults: str
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        VICTIM,
        str(run),
        str(peer),
        str(incarnation),
        serving,
        *faults,
    ]
    return zygote.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)


def test_a_crash_is_written_down_first_and_strikes_once(tmp_path: Path) -> None:
    died = victim(tmp_path, 3, 0, "-", "crash:3@5")
    assert (died.returncode, died.stdout) == (-9, "")
    assert [
        (line["event"], line["kind"], line["round"])
        for line in lines(tmp_path / "peer-3" / "events.jsonl")
    ] == [("fault", "crash", 5)]
    again = victim(tmp_path, 3, 1, "-", "crash:3@5")
    assert (again.returncode, again.stdout) == (0, "alive\n")


def test_of_two_who_serve_the_round_only_the_first_dies_unless_planned(tmp_path: Path) -> None:
    plan = ("crash:server@5", "crash:server@7")
    assert victim(tmp_path, 0, 0, "server", *plan).returncode == -9
    assert victim(tmp_path, 1, 0, "server", *plan).returncode == -9
    assert victim(tmp_path, 2, 0, "server", *plan).returncode == 0
    assert victim(tmp_path, 3, 0, "-", "crash:server@5").returncode == 0
    assert lines(tmp_path / "peer-1" / "events.jsonl")[0]["round"] == 7


def test_a_restart_says_when_to_start_again(tmp_path: Path) -> None:
    assert victim(tmp_path, 1, 0, "-", "restart:1@2+3s").returncode == -9
    line = lines(tmp_path / "peer-1" / "events.jsonl")[0]
    assert (line["kind"], line["seconds"], line["round"]) == ("restart", 3, 2)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


TIMED = """
import sys, time, pathlib
from gossip.faults.plan import parse
from gossip.inject.process import FaultInjector
from gossip.run.journal import Journal
run = pathlib.Path(sys.argv[1])
saboteur = FaultInjector(parse(sys.argv[3]), 2, int(sys.argv[2]), run, Journal(2, run / "peer-2"))
begin = time.monotonic()
saboteur.tick(begin + 100)  # nothing has begun
saboteur.reached(0)
saboteur.tick(time.monotonic() + float(sys.argv[4]))
print("alive")
"""


def timed(
    run: Path, incarnation: int, fault: str, later_s: float
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TIMED, str(run), str(incarnation), fault, str(later_s)]
    return zygote.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)


def test_a_fault_with_a_time_strikes_once_so_long_after_the_first_round(tmp_path: Path) -> None:
    assert timed(tmp_path / "early", 0, "crash:2@3000s", 2000).returncode == 0
    assert timed(tmp_path / "late", 0, "crash:2@3000s", 3001).returncode == -9
    assert timed(tmp_path / "late", 1, "crash:2@3000s", 3001).returncode == 0
    run = tmp_path / "second"
    (run / "faults").mkdir(parents=True)
    (run / "faults" / "began").write_text("-1e9")  # another peer began the run long ago
    assert timed(run, 0, "crash:2@3000s", 0).returncode == -9
