"""Recovery time after deaths: eight peers train on digits, and are killed and restarted one
after the other.

    python benchmarks/recovery.py  # a random peer every second for three minutes
    python benchmarks/recovery.py --every 3 --seconds 60 --json recovery.json

It starts ``gossip demo --only`` three times with the same settings. A short run measures how many
rounds fit into the time. The second run has no faults, the third has all faults. Exit 1 if a sample
was used twice, replicas differ, a peer did not finish, or accuracy fell by more than 0.01.
Restarted peers import torch, which keeps the machine busy. So the times depend on the number of
cores, which is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import whole_runs

from gossip.run.telemetry import read_lines

PILOT_ROUNDS = 400
BEFORE = 20  # gaps between commits; their median is the usual gap
LOOK_S = 2.0  # examined time after a kill
SLOWER = 1 / 0.95
ACCURACY_LOSS_MAX = 0.01


def main() -> int:
    parser = whole_runs.parser(__doc__, "of the killed peers")
    parser.add_argument("--seconds", type=float, default=180.0, help="duration of the kills")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two kills")
    options = parser.parse_args()
    with whole_runs.folder(options.into) as into:
        numbers = measure(options, into)
    print(page(numbers))
    return whole_runs.conclude(numbers, options.json, numbers["wrong"])


def measure(options: argparse.Namespace, into: Path) -> dict[str, Any]:
    pilot = demo(into / "pilot", options, PILOT_ROUNDS, [])
    rounds = max(PILOT_ROUNDS, round(pilot["rounds_per_s"] * (options.seconds + 10.0)))
    alone = demo(into / "fault-free", options, rounds, [])
    draw = random.Random(options.seed)
    kills = [
        (at, draw.randrange(options.peers))
        for at in np.arange(options.every, options.seconds + 1e-9, options.every).tolist()
    ]
    struck = demo(
        into / "killed", options, rounds, [f"restart:{peer}@{at:g}s+0s" for at, peer in kills]
    )
    return {
        **numbers_of(struck, into / "killed", alone),
        "every_s": options.every,
        "seed": options.seed,
        "planned": len(kills),
    }


def demo(
    folder: Path, options: argparse.Namespace, rounds: int, faults: Sequence[str]
) -> dict[str, Any]:
    """Return the summary of one ``gossip demo --only`` with exactly these faults. Raises:
    SystemExit: The demo has written no summary."""
    print(f"{folder.name}: {rounds} rounds, {len(faults)} kills", file=sys.stderr, flush=True)
    command = [*whole_runs.GOSSIP, "demo", "--only", "--json", "-n", str(options.peers)]
    command += ["--rounds", str(rounds), "--run-dir", str(folder)]
    command += [word for fault in faults for word in ("--fault", fault)]
    none = {**os.environ, "GOSSIP_FAULTS": ""}  # otherwise the demo has its default faults
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=none)
    if not (folder / "summary.json").exists():
        raise SystemExit(f"gossip demo ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return whole_runs.summary_of(folder)


def numbers_of(struck: dict[str, Any], folder: Path, alone: dict[str, Any]) -> dict[str, Any]:
    """Return the costs of the deaths in a run, and the checks that it failed."""
    deaths = struck["deaths"]
    known = [death for death in deaths if death["noticed_by"]]
    samples = struck["samples"] or {}
    numbers: dict[str, Any] = {
        "cores": os.cpu_count(),
        "peers": struck["peers"],
        "rounds": struck["rounds"],
        "rounds_lost": struck["rounds_lost"],
        "kills": len(deaths),
        "wall_s": struck["wall_s"],
        "rounds_per_s": {"killed": struck["rounds_per_s"], "fault_free": alone["rounds_per_s"]},
        "skip_ms": spread([death["skip_ms"] for death in known]),
        "dead_ms": spread([death["dead_ms"] for death in known]),
        "back_ms": spread([rejoin["after_ms"] for rejoin in struck["rejoins"]]),
        **stalls(folder, len(deaths)),
        "accuracy": {
            "killed": struck["accuracy"]["worst_replica"],
            "fault_free": alone["accuracy"]["worst_replica"],
        },
        "samples": samples,
        "replicas_identical": struck["replicas_identical"],
        "finished": struck["finished"],
    }
    accuracy = numbers["accuracy"]
    wrong = {
        "samples were used twice": samples.get("twice", 0),
        "replicas differ": not struck["replicas_identical"],
        "not all finished": len(struck["finished"]) != struck["peers"],
        "less accurate": None in accuracy.values()
        or accuracy["killed"] < accuracy["fault_free"] - ACCURACY_LOSS_MAX,
        "quarantined": struck["quarantined"],
    }
    numbers["wrong"] = [what for what, is_so in wrong.items() if is_so]
    return numbers


def stalls(folder: Path, deaths: int) -> dict[str, Any]:
    """Return, for each kill, how much longer than usual the gap between commits was, and how many
    rounds were slower."""
    rows = read_lines(folder / "commits.jsonl")
    commits = sorted((row for row in rows if not row.get("shard")), key=lambda row: row["t"])
    made_at = [row["t"] for row in commits]
    events = read_lines(folder / "events.jsonl")
    stalled, slow, served = [], [], 0
    for blow in [event for event in events if event.get("event") == "fault"]:
        first = bisect_left(made_at, blow["t"])
        if first <= BEFORE or made_at[-1] < blow["t"] + LOOK_S:
            continue
        usual = statistics.median(
            b - a
            for a, b in zip(
                made_at[first - BEFORE - 1 :], made_at[first - BEFORE : first], strict=False
            )
        )
        gaps = [made_at[first] - blow["t"]]
        gaps += [
            b - a
            for a, b in zip(made_at[first:], made_at[first + 1 :], strict=False)
            if b <= blow["t"] + LOOK_S
        ]
        stalled.append(1000 * max(0.0, gaps[0] - usual))
        slow.append(
            next((rounds for rounds, gap in enumerate(gaps) if gap <= SLOWER * usual), len(gaps))
        )
        served += commits[first].get("made_at", 0) > 0
    return {
        "stall_ms": spread(stalled),
        "slow_rounds": spread(slow),
        "hit_the_server": served,
        "judged": len(stalled),
        "deaths": deaths,
    }


def spread(values: Sequence[float | None]) -> dict[str, float]:
    known = sorted(value for value in values if value is not None)
    if not known:
        return {}
    return {"p50": at(known, 0.5), "p99": at(known, 0.99), "max": known[-1], "n": len(known)}


def at(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def page(numbers: dict[str, Any]) -> str:
    kills, rate, accuracy = numbers["kills"], numbers["rounds_per_s"], numbers["accuracy"]
    lines = [
        (
            f"{kills} kills among {numbers['peers']} peers, one every {numbers['every_s']:g} s, "
            f"on {numbers['cores']} cores; {numbers['hit_the_server']} hit the server"
        ),
        (
            f"rounds {numbers['rounds']} ({numbers['rounds_lost']} lost), {rate['killed']}/s, "
            f"{rate['fault_free']}/s without faults"
        ),
        (
            f"accuracy {accuracy['killed']:.3f}, {accuracy['fault_free']:.3f} without faults; "
            f"samples {numbers['samples']}"
        ),
        f"replicas identical: {numbers['replicas_identical']}; finished {numbers['finished']}",
        f"{'':32}{'p50':>10}{'p99':>10}{'max':>10}{'n':>6}",
    ]
    rows = {
        "skipped by all after, ms": "skip_ms",
        "declared dead by all after, ms": "dead_ms",
        "no commit beyond the usual gap, ms": "stall_ms",
        "rounds until back at 95 %": "slow_rounds",
        "takes part again after, ms": "back_ms",
    }
    for name, key in rows.items():
        if numbers[key]:
            found = numbers[key]
            times = "".join(f"{found[each]:10.1f}" for each in ("p50", "p99", "max"))
            lines.append(f"{name:32}{times}{found['n']:6}")
    lines += [f"WRONG: {what}" for what in numbers["wrong"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
