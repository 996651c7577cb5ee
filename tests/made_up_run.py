"""The folder of a run that never was: the files that so many rounds and peers would have left, with
liars, a death, a hang, a partition and a return in them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TextIO

from gossip.config import resolve

BEGAN = 1_760_000_000.0
TOLD_EVERY_S, USAGE_EVERY_S = 0.1, 5.0  # as a node's journal has them


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
    summary = {"schema": "gossip.summary/2", "status": "finished", "exit_code": 0}
    (folder / "summary.json").write_text(json.dumps({**summary, "rounds": run.rounds}))
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
        if round_id % max(1, int(run.pace * USAGE_EVERY_S)) == 0:
            yield from _usage(run, round_id)
        for row in others.get(round_id, ()):
            yield {**_stamp(run, round_id), **row, "round": round_id}
        if round_id % every == 0:
            here = _here(run, round_id)
            for peer in here:
                told = {"event": "round", "round": round_id, "step": round_id + 1, "loss": 1.0}
                more = {"server": 0, "attempt": 0, "contributors": here, "alive": len(here)}
                trust = {str(each): 1.0 for each in here}
                yield {**_stamp(run, round_id), "peer": peer, **told, **more, "trust": trust}


def _usage(run: MadeUp, round_id: int) -> Iterator[dict[str, Any]]:
    """What each peer has used until then."""
    for peer in _here(run, round_id):
        sent = {"sent_bytes": 20_000 * round_id, "received_bytes": 20_000 * round_id}
        used = {"cpu_s": 0.3 * round_id / run.pace, "memory": 300 << 20, **sent}
        left = {"load": 1.5, "machine_memory_free": 8 << 30, "disk_free": 70 << 30}
        yield {**_stamp(run, round_id), "peer": peer, "event": "usage", **used, **left}


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
        restart + int(3 * run.pace): [
            {"peer": 0, "event": "restored", "from": witness, "nbytes": 40_000}
        ],
    }
    for peer in run.liars:
        said = {"peer": witness, "subject": peer, "reasons": ["its updates stood out"]}
        found.setdefault(10, []).append({**said, "event": "suspected", "trust": 0.4})
        found.setdefault(20, []).append({**said, "event": "quarantined", "trust": 0.1})
    return found
