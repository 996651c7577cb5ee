"""Half an hour of random drills on six peers: does anything leak,
and does anything happen that no drill explains?

    python benchmarks/soak.py                                   # 30 minutes
    python benchmarks/soak.py --minutes 3 --every 10 --json soak.json

``gossip run --drills`` trains the digits MLP, ``gossip drill RUN random`` kills, stops, cuts off
and slows down peers, one at a time. Meanwhile the memory, descriptors and threads of every process
of the run are looked at, and the machine's shared memory.

Exit 1 when a process that lived for five minutes or more grew (its memory by more than a tenth and
16 MiB from the second quarter of its life to the last, or by descriptors or threads), when a
process or a shared memory segment was left behind that nobody else has mapped, when an event has no
drill on that peer, or on its link, within the half minute before, when somebody was suspected, a
round lost, or a sample used twice, or when replicas differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import whole_runs

from gossip.run.telemetry import read_lines

HERE = Path(__file__).resolve()
LOOK_S = 5.0
LIVED_S = 300.0
GROWTH, GROWTH_BYTES = 0.1, 16 * 2**20
# a drill can have consequences for so long after its end: a peer that starts again imports torch
EXPLAINED_S = 30.0
END_S = 120.0
TROUBLE = (
    "suspect",
    "dead",
    "skip",
    "paused",
    "minority_continues",
    "fork",
    "recovering",
    "unattested_state",
    "halted",
    "exited",
)
"""What happens when something is wrong with a peer or a link. Other events are of training, or
never right (``NEVER``): a busy machine alone makes updates late, and near the optimum an honest
result is doubted now and then."""
NEVER = (
    "suspected",
    "quarantined",
    "bad_state",
    "bad_commit",
    "bad_update",
    "node_error",
    "lost_round",
)
MODEL = 256  # hidden units: some 100,000 parameters, so that what is not given back shows


def train() -> None:
    """One peer: digits, until the file ``until`` says at which round it is over."""
    import gossip

    peer = gossip.init()
    import torch
    from digits_train import digits
    from torch import nn
    from torch.nn.functional import cross_entropy

    data, _, _ = digits()
    model: Any = nn.Sequential(
        nn.Linear(64, MODEL), nn.ReLU(), nn.Linear(MODEL, MODEL), nn.ReLU(), nn.Linear(MODEL, 10)
    )
    model, optimizer = peer.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    )
    loader = peer.shard(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
    assert peer.run_dir is not None
    until = peer.run_dir / "until"

    def over() -> bool:
        return until.exists() and peer.round >= int(until.read_text())

    while not over():
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            time.sleep(0.03)  # it is time that is wanted, not work
            optimizer.step()
            if over():
                break
    peer.close()


# --- what is looked at ----------------------------------------------------------------------------


@dataclass(slots=True)
class ProcessHistory:
    """What was seen of a process."""

    name: str
    at: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    @property
    def lived_s(self) -> float:
        return self.at[-1] - self.at[0]

    def growth(self) -> dict[str, tuple[float, float]]:
        """Medians of the second and the last quarter of its life."""
        quarter = len(self.at) // 4
        seen = {"rss": self.rss, "descriptors": self.descriptors, "threads": self.threads}
        return {
            what: (
                statistics.median(rows[quarter : 2 * quarter]),
                statistics.median(rows[-quarter:]),
            )
            for what, rows in seen.items()
        }

    def leaks(self) -> list[str]:
        if self.lived_s < LIVED_S:
            return []
        found = []
        for what, (before, after) in self.growth().items():
            room = max(GROWTH * before, GROWTH_BYTES) if what == "rss" else 4
            if after > before + room:
                found.append(
                    f"{self.name} lived {self.lived_s:.0f} s, {what} {before:.0f} -> {after:.0f}"
                )
        return found


class ProcessWatch:
    """Every process below the launcher."""

    def __init__(self, launcher: int) -> None:
        self._launcher = psutil.Process(launcher)
        self.lives: dict[tuple[int, float], ProcessHistory] = {}

    def look(self) -> None:
        for process in [self._launcher, *self._launcher.children(recursive=True)]:
            try:
                with process.oneshot():
                    key = process.pid, process.create_time()
                    lived = self.lives.setdefault(key, ProcessHistory(_name(process)))
                    seen = process.memory_info().rss, process.num_fds(), process.num_threads()
            except psutil.Error:
                continue  # it has ended meanwhile
            lived.at.append(time.monotonic())
            for rows, value in zip(
                (lived.rss, lived.descriptors, lived.threads), seen, strict=True
            ):
                rows.append(value)

    def left(self) -> list[str]:
        """Who is still there, after all should be gone."""
        return [
            f"{lived.name}, pid {pid}"
            for (pid, began), lived in self.lives.items()
            if _lives(pid, began)
        ]


def _name(process: psutil.Process) -> str:
    given = process.environ()
    peer = given.get("GOSSIP_PEER")
    what = (
        "node"
        if "gossip.node.loop" in process.cmdline() or "GOSSIP_NODE_FD" in given
        else "trainer"
    )
    return f"{what} of peer {peer}" if peer is not None else " ".join(process.cmdline()[:4])


def _lives(pid: int, began: float) -> bool:
    try:
        process = psutil.Process(pid)
        lives: bool = process.create_time() == began and process.status() != psutil.STATUS_ZOMBIE
        return lives
    except psutil.Error:
        return False


SHARED = Path("/dev/shm")


def segments() -> set[str]:
    return set(os.listdir(SHARED))


def of_others() -> set[str]:
    """The machine's shared memory that living processes have mapped: once a run is over,
    it is not that run's."""
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            # By inode: a semaphore is mapped under the name that it had before it was
            # linked to its own.
            mapped |= {
                int(line.split()[4])
                for line in maps.read_text().splitlines()
                if str(SHARED) in line
            }
    return {entry.name for entry in os.scandir(SHARED) if entry.inode() in mapped}


# --- what has happened ----------------------------------------------------------------------------


def unexplained(rows: list[dict[str, Any]], over_at: float) -> list[str]:
    """Events that no drill explains. A drill explains what is said by those that it hit, and of
    them; a partition what anybody says. Before the first drill the run begins, and from ``over_at``
    on it ends, and peers leave."""
    drills: list[tuple[float, float, set[int] | None]] = []  # since, until, whom it hit
    for row in rows:
        if row["event"] == "drill":
            hit = (
                None
                if row["drill"] in ("partition", "heal")
                else {*(row.get("peers") or [row.get("victim")])}
            )
            drills.append(
                (
                    row["t"],
                    row["t"] + float(row.get("for_s") or row.get("restart_s") or 0.0) + EXPLAINED_S,
                    hit,
                )
            )
    found = []
    for row in rows:
        if row["event"] not in TROUBLE + NEVER or not drills[0][0] <= row["t"] < over_at:
            continue
        named = {row.get("peer"), row.get("subject"), row.get("from"), *(row.get("missing") or ())}
        explained = any(
            since <= row["t"] <= until and (hit is None or hit & named)
            for since, until, hit in drills
        )
        if row["event"] in NEVER or not explained:
            found.append(
                json.dumps(
                    {key: value for key, value in row.items() if key not in ("wall", "trust")}
                )[:300]
            )
    return found


def main() -> int:
    parser = whole_runs.parser(__doc__, peers=6, seed="of the drills")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two drills")
    parser.add_argument("--kinds", default="kill,stop,partition,slow")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train()
        return 0
    # its run goes on as long as nobody ends it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with whole_runs.folder(options.into) as into:
        numbers = soak(options, into)
    print(page(numbers))
    return whole_runs.conclude(numbers, options.json, numbers["wrong"])


def soak(options: argparse.Namespace, into: Path) -> dict[str, Any]:
    run, before = into / "run", segments()
    command = [
        *whole_runs.GOSSIP,
        "run",
        "--drills",
        "-n",
        str(options.peers),
        "--aggregator",
        "mean",
        "--run-dir",
        str(run),
        "--quiet",
        str(HERE),
        "--train",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (into / "run.log").open("w") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        drills: subprocess.Popen[bytes] | None = None
        watch = ProcessWatch(launcher.pid)
        try:
            trains = lambda: any(  # noqa: E731
                row["event"] == "round" and row["round"] > 20 for row in events(run)
            )
            until(trains, END_S, f"the run does not start: {into / 'run.log'}")
            order = [
                "--every",
                f"{options.every}s",
                "--for",
                f"{options.minutes * 60:.0f}s",
                "--kinds",
                options.kinds,
            ]
            drills = subprocess.Popen(
                [
                    *whole_runs.GOSSIP,
                    "drill",
                    str(run),
                    "random",
                    *order,
                    "--seed",
                    str(options.seed),
                ],
                stdout=log,
                stderr=log,
            )
            while drills.poll() is None and launcher.poll() is None:
                watch.look()
                time.sleep(LOOK_S)
            over_at, last = (
                time.monotonic(),
                max(row["round"] for row in events(run) if row["event"] == "round"),
            )
            (run / "until.new").write_text(str(last + 100))
            (run / "until.new").rename(run / "until")
            code = launcher.wait(END_S)
        finally:
            for process in (drills, launcher):
                if process is not None and process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(END_S)
    return judged(run, code, watch, sorted(segments() - before - of_others()), over_at)


def judged(
    run: Path, code: int, watch: ProcessWatch, segments_left: list[str], over_at: float
) -> dict[str, Any]:
    rows, summary = events(run), whole_runs.summary_of(run)
    samples = summary["samples"] or {}
    wrong = [leak for lived in watch.lives.values() for leak in lived.leaks()]
    wrong += [f"left behind: {what}" for what in watch.left()] + [
        f"shared memory left behind: {name}" for name in segments_left
    ]
    wrong += [f"not explained: {row}" for row in unexplained(rows, over_at)]
    checks = {
        f"exit code {code}": code,
        f"{summary['rounds_lost']} rounds lost": summary["rounds_lost"],
        f"samples {samples}": samples.get("twice"),
        "replicas differ": summary["replicas_identical"] is not True,
        f"suspected {summary['suspected']}": summary["suspected"],
        f"finished {summary['finished']}": len(summary["finished"]) != summary["peers"],
    }
    wrong += [what for what, is_so in checks.items() if is_so]
    kept = sorted(
        (lived for lived in watch.lives.values() if lived.lived_s >= LIVED_S),
        key=lambda lived: -lived.lived_s,
    )
    return {
        "cores": os.cpu_count(),
        "wall_s": summary["wall_s"],
        "rounds": summary["rounds"],
        "rounds_lost": summary["rounds_lost"],
        "drills": dict(Counter(row["drill"] for row in rows if row["event"] == "drill")),
        "lives": len(watch.lives),
        "long_lives": [
            {"name": lived.name, "lived_s": round(lived.lived_s), **lived.growth()}
            for lived in kept
        ],
        "events": dict(Counter(row["event"] for row in rows)),
        "samples": samples,
        "wrong": wrong,
    }


def events(run: Path) -> list[dict[str, Any]]:
    return list(read_lines(run / "events.jsonl"))


def until(what: Any, within_s: float, complaint: str) -> None:
    ends = time.monotonic() + within_s
    while not what():
        if time.monotonic() > ends:
            raise SystemExit(complaint)
        time.sleep(0.2)


def page(numbers: dict[str, Any]) -> str:
    rows = [
        (
            f"{numbers['wall_s']:.0f} s on {numbers['cores']} cores: {numbers['rounds']} rounds, "
            f"{numbers['rounds_lost']} lost; drills {numbers['drills']}; {numbers['lives']} "
            f"processes, {len(numbers['long_lives'])} lived {LIVED_S:.0f} s or more"
        ),
        f"events {numbers['events']}",
        f"samples {numbers['samples']}",
        "second quarter of a life -> last one:",
    ]
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for lived in numbers["long_lives"]:
        by_kind[lived["name"].split(" of ")[0]].append(lived)
    for kind, lives in by_kind.items():
        for lived in lives[:3]:
            grown = ", ".join(
                f"{what} {lived[what][0]:.0f} -> {lived[what][1]:.0f}"
                for what in ("rss", "descriptors", "threads")
            )
            rows.append(f"  {lived['name']} ({lived['lived_s']} s): {grown}")
        if len(lives) > 3:
            rows.append(f"  and {len(lives) - 3} more of the kind {kind!r}")
    return "\n".join(
        [*rows, *(f"WRONG: {what}" for what in numbers["wrong"])]
        if numbers["wrong"]
        else [*rows, "nothing is wrong"]
    )


if __name__ == "__main__":
    sys.exit(main())
