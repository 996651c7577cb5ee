"""Trains eight peers for a planned number of epochs, under all kinds of faults of peers. It checks
that the run ends as planned, with the loss of a run without faults.

    python benchmarks/planned_storm.py --into storm --seed 1       # about half an hour
    python benchmarks/planned_storm.py --into storm --epochs 1 --pause 0.02

The seed determines random times of the faults: kills with a restart, paused or slow peers, cuts in
one and in both directions. Peers also join, and are requested to leave (SIGTERM) some time later.
The same script runs once without faults and without pauses.

Exit 1 if the run did not end properly, did not use each sample exactly once in each planned epoch,
or ended with replicas that differ. Exit 1 if the loss on held-out samples is more than 1 % above
the loss without faults. Also exit 1 if a process that ran for five minutes grew: its memory by 16
MiB from the second quarter of its run to the last, or by 20 descriptors or 5 threads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from whole_runs import GOSSIP, conclude, environment, folder, parser, summary_of

from gossip.faults import Fault, FaultPlan, Hang, Partition, Restart, Slow
from gossip.run.telemetry import read_lines
from gossip_lab.workers import end_process

BATCH = 8
APART_S = 15.0  # minimum time between two faults of one peer
EVERY_S = {"kill": 40.0, "hang": 60.0, "slow": 120.0, "cut": 60.0, "cut one way": 60.0}
JOIN_EVERY_S, STAYS_S = 120.0, 60.0
CALM_S = 10.0
TOKENS, WIDTH, HIDDEN = 32, 32, 200
SAMPLES, HELD_OUT = 200_000, 2_000
WORSE_MAX = 0.01
LASTS_MAX_S = 3600.0
LEAK_LIVED_S = 300.0
# A departed peer keeps five descriptors for half a minute (`gossip_to_dead_s`). If they were kept
# forever, the peers that join in a quarter of an hour would add more than thirty descriptors.
LEAK_ROOM = {"bytes": 16 * 2**20, "descriptors": 20, "threads": 5}


def draw_samples() -> tuple[Any, Any]:
    """Return training samples and test samples. A sample is two tokens and the token that
    follows."""
    import torch

    draw = torch.Generator().manual_seed(0)
    first, second = 1.5 * torch.randn(2, TOKENS, TOKENS, generator=draw)
    before = torch.randint(TOKENS, (SAMPLES + HELD_OUT, 2), generator=draw)
    chances = torch.softmax(first[:, None] + second[None], dim=2).flatten(0, 1)
    # Invert the cumulative distribution, so that a restarted peer generates all samples quickly.
    of_pair = before[:, 0] * TOKENS + before[:, 1]
    upto = (chances.cumsum(dim=1) + torch.arange(TOKENS**2)[:, None]).flatten()
    lots = of_pair + torch.rand(len(before), generator=draw)
    follows = (torch.searchsorted(upto, lots) - TOKENS * of_pair).clamp(0, TOKENS - 1)
    rows = torch.cat([before, follows[:, None]], dim=1)
    return rows[:SAMPLES], rows[SAMPLES:]


def train() -> None:
    """Train as one peer: predict which token follows two others."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    import gossip

    peer = gossip.init()
    rows, held_out = draw_samples()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Embedding(TOKENS, WIDTH),
        nn.Flatten(),
        nn.Linear(2 * WIDTH, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, TOKENS),
    )
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True))
    for _ in peer.epochs(int(os.environ["STORM_EPOCHS"]), remainder="extend"):
        for batch in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch[:, :2]), batch[:, 2]).backward()
            time.sleep(float(os.environ["STORM_PAUSE_S"]))
            optimizer.step()
    with torch.no_grad():
        loss = float(cross_entropy(model(held_out[:, :2]), held_out[:, 2]))
    assert peer.run_dir is not None
    (peer.run_dir / f"loss-{peer.id}").write_text(str(loss))


def draw_storm(seed: int, peers: int, lasts_s: float) -> FaultPlan:
    """Generate random faults. No peer has two faults within ``APART_S``, and no cut overlaps
    another."""
    rng = random.Random(f"planned storm/{seed}")
    times = sorted(
        (at_s, kind)
        for kind, every_s in EVERY_S.items()
        for at_s in _arrivals(rng, every_s, lasts_s)
    )
    faults: list[Fault] = []
    busy: dict[int, float] = {}
    cut_until_s = 0.0
    for at_s, kind in times:
        free = [peer for peer in range(peers) if busy.get(peer, 0.0) <= at_s]
        if not free or (kind.startswith("cut") and at_s < cut_until_s):
            continue
        peer = rng.choice(free)
        busy[peer] = at_s + APART_S
        rest = tuple(other for other in range(peers) if other != peer)
        match kind:
            case "kill":
                faults.append(Restart(peer, None, 1.0, at_s))
            case "hang":
                faults.append(Hang(peer, None, rng.choice([0.3, 1.0, 3.0, 10.0]), at_s))
            case "slow":
                faults.append(Slow(peer, 4.0, at_s, 10.0))
            case _:
                for_s = rng.choice([1.0, 5.0, 10.0])
                cut_until_s = at_s + for_s + APART_S
                faults.append(Partition(((peer,), rest), at_s, for_s, kind == "cut one way"))
    return FaultPlan(tuple(faults)).real().checked(peers)


def _arrivals(rng: random.Random, every_s: float, lasts_s: float) -> Iterator[float]:
    at_s = CALM_S + rng.expovariate(1 / every_s)
    while at_s < lasts_s:
        yield round(at_s, 3)
        at_s += rng.expovariate(1 / every_s)


def play(run: Path, options: argparse.Namespace, plan: FaultPlan | None) -> tuple[float, list[str]]:
    """Return the seconds that a run took, and the leaks of its processes."""
    words = ["--restarts", "5", "--room", str(options.peers + 4)]
    pause_s = options.pause
    if plan is None:
        words, pause_s = [], 0.0
    else:
        file = run.with_suffix(".toml")
        file.write_text(plan.to_toml())
        words += ["--faults", str(file)]
    env = environment(STORM_EPOCHS=str(options.epochs), STORM_PAUSE_S=str(pause_s))
    command = [*GOSSIP, "run", "-n", str(options.peers), "--aggregator", "mean", "--run-dir"]
    command += [str(run), "--quiet", *words, __file__, "--train"]
    log, began = run.with_suffix(".log"), time.monotonic()
    with log.open("w") as out:
        launcher = subprocess.Popen(command, stdout=out, stderr=out, env=env)
        growth = Growth(launcher.pid)
        guests = Guests(run, env, random.Random(f"guests/{options.seed}"))
        try:
            while launcher.poll() is None and time.monotonic() < began + LASTS_MAX_S:
                if plan is not None:
                    guests.update_guests(time.monotonic() - began)
                growth.measure()
                time.sleep(0.5)
        finally:
            guests.end()
            end_process(launcher, 120.0)
    if launcher.returncode:
        print(f"exit code {launcher.returncode}: {log}", file=sys.stderr)
    return time.monotonic() - began, growth.leaks()


class Growth:
    """Memory, descriptors and threads of each process of a run over time."""

    def __init__(self, launcher: int) -> None:
        self._launcher = psutil.Process(launcher)
        self._seen: dict[psutil.Process, list[tuple[float, int, int, int]]] = defaultdict(list)

    def measure(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in [self._launcher, *self._launcher.children(recursive=True)]:
                # The process may have ended after it was listed.
                with contextlib.suppress(psutil.Error), process.oneshot():
                    used = process.memory_info().rss, process.num_fds(), process.num_threads()
                    self._seen[process].append((time.monotonic(), *used))

    def leaks(self) -> list[str]:
        found = []
        for process, rows in self._seen.items():
            if rows[-1][0] - rows[0][0] < LEAK_LIVED_S:
                continue
            quarter = len(rows) // 4
            for at, (what, room) in enumerate(LEAK_ROOM.items(), 1):
                before = statistics.median(row[at] for row in rows[quarter : 2 * quarter])
                after = statistics.median(row[at] for row in rows[-quarter:])
                if after - before >= room:
                    found.append(f"pid {process.pid}: {what} rose from {before:.0f} to {after:.0f}")
        return found


class Guests:
    """Peers that join, and are requested to leave after some time."""

    def __init__(self, run: Path, env: dict[str, str], rng: random.Random) -> None:
        self._run, self._env, self._rng = run, env, rng
        self._next_s = JOIN_EVERY_S
        self._here: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.came = 0

    def update_guests(self, now_s: float) -> None:
        if now_s >= self._next_s:
            self._next_s = now_s + self._rng.expovariate(1 / JOIN_EVERY_S)
            with (self._run.parent / "guests.log").open("ab") as out:
                guest = subprocess.Popen(
                    [*GOSSIP, "join", str(self._run)], stdout=out, stderr=out, env=self._env
                )
            self._here.append((now_s + STAYS_S, guest))
            self.came += 1
        for leaves_s, guest in self._here:
            if now_s >= leaves_s and guest.poll() is None:
                guest.send_signal(signal.SIGTERM)
        self._here = [each for each in self._here if each[1].poll() is None]

    def end(self) -> None:
        for _, guest in self._here:
            end_process(guest, 60.0)


def judge(run: Path, alone: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    summary = summary_of(run)
    losses = [float(path.read_text()) for path in run.glob("loss-*")]
    without = [float(path.read_text()) for path in alone.glob("loss-*")]
    worse = max(losses, default=float("inf")) / min(without, default=float("nan")) - 1
    rows = read_lines(run / "events.jsonl")
    struck = Counter(row.get("kind") for row in rows if row.get("event") == "fault")
    numbers = {
        "summary": {
            key: summary.get(key)
            for key in ("status", "exit_code", "rounds", "replicas_identical", "divergences")
        },
        "epochs": summary.get("epochs"),
        "faults": dict(struck),
        "losses": sorted(losses),
        "without faults": sorted(without),
        "worse": worse,
    }
    epochs = summary.get("epochs") or []
    wrong = []
    if summary["exit_code"]:
        wrong.append(f"exit code {summary['exit_code']}")
    if not summary["replicas_identical"]:
        wrong.append("replicas differ")
    if len(epochs) != options.epochs or any(epoch["twice"] for epoch in epochs):
        wrong.append("some epochs are not over, or samples were used twice")
    if epochs and epochs[-1]["never"]:
        wrong.append(f"{epochs[-1]['never']} samples were left")
    if not worse <= WORSE_MAX:
        wrong.append(f"the loss is {worse:.2%} above that without faults")
    return numbers, wrong


def main() -> int:
    made = parser(__doc__, "of the faults")
    made.add_argument("--epochs", type=int, default=4)
    made.add_argument("--pause", type=float, default=0.06, help="seconds that a step sleeps")
    made.add_argument("--minutes", type=float, default=30.0, help="duration of the faults")
    made.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.train:
        train()
        return 0
    with folder(options.into) as into:
        alone, run = into / "alone", into / f"storm-{options.seed}"
        if not alone.exists():
            play(alone, options, None)
        plan = draw_storm(options.seed, options.peers, 60 * options.minutes)
        took_s, leaks = play(run, options, plan)
        numbers, wrong = judge(run, alone, options)
        wrong += leaks
        print(json.dumps({"seconds": round(took_s), **numbers}, indent=1))
        for line in wrong:
            print(f"wrong: {line}")
        return conclude({"seconds": took_s, **numbers}, options.json, wrong)


if __name__ == "__main__":
    sys.exit(main())
