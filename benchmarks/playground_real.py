"""Real runs compared with their worlds in the playground: accuracy, payload bytes, and seconds per
round.

    python benchmarks/playground_real.py
    python benchmarks/playground_real.py --cases rolling random-k-crash --json real.json
    python benchmarks/playground_real.py --delay 50ms

Each case is one ``gossip run`` of ``playground_train.py``, and the same world in the playground.
Both engines play it with random times of computations (``exact``, ``fast``). The exact engine also
plays it with the times that the run measured on this machine (``measured``). Honest peers that are
present are evaluated. Seconds per round are measured between the first evaluated round and the
last, so they exclude the start. A killed peer cannot report its bytes, so the bytes of the other
peers are compared. The playground has only a total, which is reduced by an equal share of the
rounds before the kill.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from whole_runs import HERE, Failed, conclude, folder, parser, run_gossip, summary_of

from gossip_lab import World
from gossip_lab.pages import markdown_table
from gossip_lab.playground.moments import Moment
from gossip_lab.playground.parts import Parts
from gossip_lab.playground.timing import read_compute
from gossip_lab.playground.world import EngineName, play_moments

SCRIPT = HERE / "playground_train.py"
ACCURACY_GOAL, BYTES_GOAL, SECONDS_GOAL = 0.01, 0.05, 0.25
VICTIM, CRASH_ROUND = 3, 20
TOPOLOGIES = {"rolling": "rolling", "random-k": "random-k:k=5"}
DISTURBANCES: dict[str, dict[str, Any]] = {
    "": {},
    "-crash": {"faults": (f"crash:{VICTIM}@{CRASH_ROUND}",)},
    "-attack": {"faults": ("sign_flip:6,7*10",), "aggregator": "trimmed_mean", "f": 2},
}
CASES = {
    name + suffix: {"topology": topology, **changes}
    for name, topology in TOPOLOGIES.items()
    for suffix, changes in DISTURBANCES.items()
}


@dataclass(frozen=True)
class Curve:
    """Outcome of a run or a played world.

    Attributes:
        accuracies: For each evaluated round, the mean test accuracy of present honest peers.
        nbytes: Bytes of payloads of the peers that were not killed.
        seconds: Seconds per round, between the first evaluated round and the last.
    """

    accuracies: dict[int, float]
    nbytes: float
    seconds: float


def run_real(
    world: World, rounds: int, every: int, place: Path, faults: Iterable[str] = ()
) -> Path:
    """Run the world with real peers, and with these additional faults. Return the run's folder.
    Raises: Failed: The exit code was not 0, or the run took too long."""
    place.mkdir(parents=True)
    (place / "world.toml").write_text(world.to_toml(), "utf-8")
    run = place / "run"
    words = [
        *["run", "-q", "-n", str(world.peers), "--topology", world.topology],
        *["--aggregator", world.aggregator, "-f", str(world.f), "--seed", str(world.seed)],
        *["--local-steps", str(world.local_steps), "--run-dir", str(run)],
        *[word for fault in (*world.faults, *faults) for word in ("--fault", fault)],
        *[str(SCRIPT), str(place / "world.toml")],
        *["--rounds", str(rounds), "--every", str(every)],
    ]
    run_gossip(words, place / "log")
    return run


def build_parts(world: World, run: Path) -> Parts:
    """Return the parts of the world with the topology of a run, which depends on the seed and the
    run's id."""
    run_id = bytes.fromhex(summary_of(run)["run"])
    lineage = blake2b(b"lineage" + run_id, digest_size=8).digest()  # as in gossip.config
    parts = world.build()
    return replace(parts, settings=replace(parts.settings, lineage=lineage))


def read_run(parts: Parts, run: Path, rounds: int, every: int) -> Curve:
    """Return the curve of a run's folder. Raises: Failed: The peers that died are not those that
    the world's faults crash."""
    summary = summary_of(run)
    killed = {death["peer"] for death in summary["deaths"]}
    if killed != {fault.peer for fault in parts.mishaps.blows}:
        raise Failed(f"the peers {sorted(killed)} died")
    reached: dict[int, list[float]] = {every: [], rounds: []}
    nbytes = 0
    for peer in sorted(set(range(parts.peers)) - killed):
        for round_id, times in reached.items():
            times.append(reached_s(run, peer, round_id))
        nbytes += sent_payload_bytes(run / f"peer-{peer}" / "events.jsonl")
    evaluated = range(every, rounds + 1, every)
    accuracies = {round_id: saved_accuracy(parts, run, round_id) for round_id in evaluated}
    return Curve(accuracies, nbytes, _seconds_per_round(reached))


def reached_s(run: Path, peer: int, round_id: int) -> float:
    """Return the time at which a peer of a run had applied this number of rounds."""
    applied = json.loads((run / f"times-{peer}.json").read_text("utf-8"))
    return float(next(at for done, at, _ in applied if done >= round_id))


def saved_accuracy(parts: Parts, run: Path, round_id: int) -> float:
    """Return the mean accuracy of the parameters that honest peers saved after a round; NaN if no
    peer saved any."""
    paths = [run / f"parameters-{peer}-{round_id}.f32" for peer in np.flatnonzero(parts.honest)]
    saved = [torch.from_numpy(np.fromfile(path, np.float32)) for path in paths if path.exists()]
    return mean_accuracy(parts, torch.stack(saved)) if saved else math.nan


def computed_times(run: Path) -> Iterable[str]:
    """Yield a line ``peer,seconds`` for each computation of a surviving peer."""
    for path in sorted(run.glob("times-*.json")):
        for _, _, computed_s in json.loads(path.read_text("utf-8")):
            yield f"{path.stem.removeprefix('times-')},{computed_s}"


def sent_payload_bytes(events: Path) -> int:
    rows = map(json.loads, events.read_text("utf-8").splitlines())
    return sum(row["traffic"]["sent_payload_bytes"] for row in rows if row.get("event") == "halted")


def _seconds_per_round(reached: dict[int, list[float]]) -> float:
    (first, begun), (last, ended) = reached.items()
    return (statistics.median_low(ended) - statistics.median_low(begun)) / (last - first)


def mean_accuracy(parts: Parts, parameters: torch.Tensor) -> float:
    return float(parts.task.evaluate(parameters).accuracy.mean())


def play(parts: Parts, engine: EngineName, rounds: int, every: int) -> Curve:
    """Play a world in one engine."""
    accuracies, moments = {}, []
    for moment in play_moments(engine, parts):
        moments.append(moment)
        if moment.rounds % every == 0:
            rows = np.flatnonzero(moment.present & parts.honest)
            accuracies[moment.rounds] = mean_accuracy(parts, moment.parameters[rows])
        if moment.rounds == rounds:
            break
    seconds = (moments[-1].virtual_s - moments[every - 1].virtual_s) / (rounds - every)
    return Curve(accuracies, _survivors_bytes(parts, moments), seconds)


def _survivors_bytes(parts: Parts, moments: list[Moment]) -> float:
    before = [moments[crash.round - 1].bytes_sent for crash in parts.mishaps.blows if crash.round]
    return moments[-1].bytes_sent - sum(before) / parts.peers


def compare(real: Curve, played: Curve) -> dict[str, Any]:
    """Return the differences between a played world and the real run, and whether they meet the
    goals."""
    accuracy = max(abs(real.accuracies[at] - played.accuracies[at]) for at in real.accuracies)
    nbytes, seconds = real.nbytes / played.nbytes, real.seconds / played.seconds
    return {
        "accuracy": accuracy,
        "bytes": nbytes,
        "seconds": seconds,
        "met": {
            "accuracy": accuracy <= ACCURACY_GOAL,
            "bytes": abs(nbytes - 1) <= BYTES_GOAL,
            "seconds": abs(seconds - 1) <= SECONDS_GOAL,
        },
    }


COLUMNS = (
    *("case", "played", "accuracy: real, last", "largest difference", "payload MB: real"),
    *("real / played", "ms a round: real", "real / played", "goals"),
)


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return lines of markdown."""
    rows = []
    for case, row in found.items():
        real: Curve = row["real"]
        for name, there in row["played"].items():
            missed = ", ".join(goal for goal, is_met in there["met"].items() if not is_met)
            accuracy = [f"{list(real.accuracies.values())[-1]:.4f}", f"{there['accuracy']:.4f}"]
            nbytes = [f"{real.nbytes / 1e6:.2f}", f"{there['bytes']:.3f}"]
            seconds = [f"{1e3 * real.seconds:.1f}", f"{there['seconds']:.3f}"]
            goals = f"missed: {missed}" if missed else "met"
            rows.append([case, name, *accuracy, *nbytes, *seconds, goals])
    return markdown_table(COLUMNS, rows)


def main() -> int:
    arguments = parser(__doc__, "of the worlds")
    arguments.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--every", type=int, default=10, help="rounds between evaluations")
    arguments.add_argument("--compute", default="uniform:45ms:55ms")
    arguments.add_argument("--delay", help="each message takes up to this longer, such as 50ms")
    options = arguments.parse_args()
    delay = options.delay
    links = f"delay:0-{delay}" if delay else "loopback"
    base = World(peers=options.peers, seed=options.seed, compute=options.compute, links=links)
    found: dict[str, dict[str, Any]] = {}
    with folder(options.into) as place:
        for case in options.cases:
            world = base.replace(**CASES[case])
            faults = [f"delay:all*{delay}@0s+1000s"] if delay else []
            run = run_real(world, options.rounds, options.every, place / case, faults)
            parts = build_parts(world, run)
            measured = place / case / "computed.csv"
            measured.write_text("\n".join(["peer,seconds", *computed_times(run)]), "utf-8")
            as_here = replace(parts, compute=read_compute(f"measured:{measured}", options.seed))
            real = read_run(parts, run, options.rounds, options.every)
            curves = {
                "exact": play(parts, "exact", options.rounds, options.every),
                "fast": play(parts, "fast", options.rounds, options.every),
                "measured": play(as_here, "exact", options.rounds, options.every),
            }
            played = {each: compare(real, curve) for each, curve in curves.items()}
            found[case] = {"real": real, "curves": curves, "played": played}
    print("\n".join(table(found)))
    missed = [
        case for case, row in found.items() if not all(row["played"]["exact"]["met"].values())
    ]
    return conclude(json.loads(json.dumps(found, default=vars)), options.json, missed)


if __name__ == "__main__":
    sys.exit(main())
