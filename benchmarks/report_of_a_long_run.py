"""How long ``gossip report`` takes for a long run, and how large its page is.

The run is made up: its folder has the files that a run of so many rounds and peers would have
left, with two liars, a death, a return, a hang and a partition in it. Nothing is trained.

    python benchmarks/report_of_a_long_run.py --rounds 100000 --peers 8
    python benchmarks/report_of_a_long_run.py --peers 200 --rounds 2000 --keep FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TextIO

from gossip.config import resolve

BEGAN = 1_760_000_000.0
TOLD_EVERY_S = 0.1  # as a node's journal throttles reports of rounds


@dataclass(frozen=True, slots=True)
class MadeUp:
    """The run: so many rounds of so many peers, at so many rounds a second."""

    rounds: int
    peers: int
    pace: float
    seed: int = 0

    @property
    def liars(self) -> tuple[int, ...]:
        return tuple(range(self.peers - max(1, self.peers // 5), self.peers))

    def at(self, share: float) -> int:
        return int(share * self.rounds)

    @property
    def faults(self) -> list[str]:
        sides = f"0-{self.peers // 2 - 1}|{self.peers // 2}-{self.peers - 1}"
        return [
            f"sign_flip:{self.liars[0]}-{self.liars[-1]}*10",
            f"crash:1@{self.at(0.2)}",
            f"hang:2@{self.at(0.4)}+3s",
            f"partition:{sides}@{self.rounds / self.pace * 0.55:.0f}s+4s",
            f"restart:0@{self.at(0.75)}+2s",
        ]


def write(run: MadeUp, folder: Path) -> None:
    """Writes the folder of the run."""
    flags = {"peers": run.peers, "name": folder.name, "faults": run.faults, "f": len(run.liars)}
    settled = resolve({**flags, "run_dir": str(folder)}).with_values("made up", run="00" * 8)
    folder.mkdir(parents=True)
    settled.config.dump(folder / "config.json")
    (folder / "config.toml").write_text(settled.to_toml())
    environment = {"schema": "gossip.environment/1", "command": ["gossip", "run", "train.py"]}
    (folder / "environment.json").write_text(json.dumps({**environment, "started": BEGAN}))
    with (folder / "commits.jsonl").open("w") as file:
        _write_rows(file, "commits", _commits(run))
    with (folder / "events.jsonl").open("w") as file:
        _write_rows(file, "events", _events(run))
    for peer in range(run.peers):
        (folder / f"peer-{peer}").mkdir()
        with (folder / f"peer-{peer}" / "metrics.jsonl").open("w") as file:
            _write_rows(file, "metrics", _metrics(run, peer))


def _write_rows(file: TextIO, kind: str, rows: Iterator[Mapping[str, Any]]) -> None:
    file.write(json.dumps({"schema": f"gossip.{kind}/2"}) + "\n")
    for row in rows:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def _stamp(run: MadeUp, round_id: int) -> dict[str, float]:
    t = round_id / run.pace
    return {"t": 1000.0 + t, "wall": BEGAN + t}


def _here(run: MadeUp, round_id: int) -> list[int]:
    away = {1} if round_id > run.at(0.2) else set()
    if run.at(0.75) < round_id < run.at(0.75) + 3 * run.pace:
        away.add(0)
    return [peer for peer in range(run.peers) if peer not in away]


def _commits(run: MadeUp) -> Iterator[dict[str, Any]]:
    draw = Random(run.seed)
    for round_id in range(run.rounds):
        here = _here(run, round_id)
        trust = {str(peer): 0.1 if peer in run.liars and round_id > 20 else 1.0 for peer in here}
        yield {
            **_stamp(run, round_id),
            "lineage": "aa",
            "round": round_id,
            "shard": 0,
            "attempt": 0,
            "made_at": 0,
            "server": draw.choice(here),
            "parent": f"{round_id - 1:032x}",
            "digest": f"{round_id:032x}",
            "chain": f"{round_id:032x}",
            "contributors": [
                {
                    "peer": peer,
                    "samples": 16,
                    "weight": 0.0 if peer in run.liars else draw.uniform(0.1, 0.2),
                    "outlyingness": draw.gauss(15, 3) if peer in run.liars else draw.random(),
                    "took_us": int(1e6 / run.pace * draw.uniform(0.3, 0.9 if peer else 1.4)),
                }
                for peer in here
            ],
            "rejected": [],
            "accusations": [],
            "roster": here,
            "loss": 1.0,
            "rates": [0.1, 0.0],
            "reason": "",
            "trust": trust,
            "epoch": round_id // 16,
            "slices": {str(peer): [[peer * 16, peer * 16 + 16]] for peer in here},
            "samples_total": 2048,
            "steps_per_epoch": 16,
        }


def _metrics(run: MadeUp, peer: int) -> Iterator[dict[str, Any]]:
    draw = Random(run.seed + peer)
    for round_id in range(run.rounds):
        if peer in _here(run, round_id):
            loss = 0.1 + 2 * math.exp(-5 * round_id / run.rounds) * draw.uniform(0.8, 1.25)
            yield {**_stamp(run, round_id), "peer": peer, "round": round_id, "loss": loss}


def _events(run: MadeUp) -> Iterator[dict[str, Any]]:
    for peer in range(run.peers):
        start = {**_stamp(run, 0), "peer": peer}
        yield {**start, "event": "spawned", "pid": 1000 + peer, "incarnation": 0}
        yield {**start, "event": "started", "pid": 1000 + peer, "incarnation": 0}
        yield {**start, "event": "ready", "present": list(range(run.peers)), "waited_s": 0.1}
    others = _happenings(run)
    every = max(1, int(run.pace * TOLD_EVERY_S))
    for round_id in range(run.rounds):
        for row in others.get(round_id, ()):
            yield {**_stamp(run, round_id), **row, "round": round_id}
        if round_id % every == 0:
            here = _here(run, round_id)
            for peer in here:
                told = {"event": "round", "round": round_id, "step": round_id + 1, "loss": 1.0}
                more = {"server": 0, "attempt": 0, "contributors": here, "alive": len(here)}
                trust = {str(each): 1.0 for each in here}
                yield {**_stamp(run, round_id), "peer": peer, **told, **more, "trust": trust}


def _happenings(run: MadeUp) -> dict[int, list[dict[str, Any]]]:
    """Round -> what happens in it, beside rounds."""
    crash, hang, cut, restart = run.at(0.2), run.at(0.4), run.at(0.55), run.at(0.75)
    names = run.faults
    witness = 3
    found: dict[int, list[dict[str, Any]]] = {
        crash: [{"peer": 1, "event": "fault", "kind": "crash", "fault": names[1]}],
        crash + 1: [
            {"peer": 1, "event": "exited", "code": None, "signal": 9, "how": "killed by SIGKILL"},
            {"peer": witness, "event": "skip", "subject": 1, "reason": "disconnected"},
        ],
        crash + int(run.pace): [{"peer": witness, "event": "dead", "subject": 1, "by": witness}],
        hang: [{"peer": 2, "event": "fault", "kind": "hang", "fault": names[2], "seconds": 3.0}],
        hang + 1: [{"peer": witness, "event": "skip", "subject": 2, "reason": "no answer"}],
        hang + int(3 * run.pace): [{"peer": 2, "event": "continued"}],
        cut: [{"peer": 0, "event": "fault", "kind": "partition", "fault": names[3]}],
        cut + int(4 * run.pace): [{"peer": 0, "event": "fault_over", "fault": names[3]}],
        restart: [
            {"peer": 0, "event": "fault", "kind": "restart", "fault": names[4], "seconds": 2.0}
        ],
        restart + 1: [
            {"peer": 0, "event": "exited", "code": None, "signal": 9, "how": "killed by SIGKILL"},
            {"peer": witness, "event": "skip", "subject": 0, "reason": "disconnected"},
        ],
        restart + int(2 * run.pace): [
            {"peer": 0, "event": "spawned", "pid": 1, "incarnation": 1},
            {"peer": 0, "event": "started", "pid": 1, "incarnation": 1},
        ],
    }
    for peer in run.liars:
        said = {"peer": witness, "subject": peer, "reasons": ["its updates stood out"]}
        found.setdefault(10, []).append({**said, "event": "suspected", "trust": 0.4})
        found.setdefault(20, []).append({**said, "event": "quarantined", "trust": 0.1})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--pace", type=float, default=25.0, help="Rounds a second.")
    parser.add_argument("--keep", type=Path, help="Leave the run's folder here.")
    options = parser.parse_args()
    run = MadeUp(options.rounds, options.peers, options.pace)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch, "long")
        shutil.rmtree(folder, ignore_errors=True)
        write(run, folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        page = folder / "report.html"
        began, spent = time.monotonic(), os.times()
        command = [sys.executable, "-m", "gossip.launch.cli", "report", str(folder)]
        subprocess.run([*command, "--out", str(page)], check=True)
        wall_s, now = time.monotonic() - began, os.times()
        cpu_s = now.children_user + now.children_system
        cpu_s -= spent.children_user + spent.children_system
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        found = {
            "rounds": run.rounds,
            "peers": run.peers,
            "read_bytes": size,
            "page_bytes": page.stat().st_size,
            "wall_s": round(wall_s, 1),
            "cpu_s": round(cpu_s, 1),
            "memory_bytes": memory,
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
