"""Time to an accuracy: the prediction of the playground compared with real runs.

    python benchmarks/time_to_accuracy.py
    python benchmarks/time_to_accuracy.py --cases wan-rolling spot-random-k --json times.json
    python benchmarks/time_to_accuracy.py --no-run

Nine worlds: three kinds of links, each with rolling rounds, random-k, and rolling rounds of 30
local steps. The links are a LAN, a WAN, and a LAN on which hosts 4 to 7 come and go as spot
instances. Both engines predict, with an evaluation every ``--every`` rounds; then ``gossip run``
plays the same world with eight processes that sleep until the time of a computation is over. In a
real run injected faults emulate the WAN (``delay``, ``trickle``) and the end of a spot instance
(``restart``). A peer that returns
needs some seconds until it takes part: ``--start`` sets this time, as measured in an earlier run.
Times are counted from the first round, without the start of the run. Exit 1 if a predicted time is
not within 25 % of the real time.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from playground_real import mean_accuracy, reached_s, run_real, saved_accuracy
from whole_runs import conclude, folder, parser

from gossip_lab import World
from gossip_lab.playground.availability import read_availability
from gossip_lab.playground.parts import Parts
from gossip_lab.playground.world import EngineName, play_moments

GOAL = 0.25
MARGIN = 1.4
"""Number of rounds of a real run, as a multiple of the predicted number."""
STABLE_PEERS = 4
"""Number of peers that the spot market never stops. They report the times of the whole run."""
DELAY_S, LINK_BYTES_PER_S = 0.05, 1_250_000
WAN = (f"delay:all*{DELAY_S}s@0s+1000s", f"trickle:0-7*{LINK_BYTES_PER_S}@0s+1000s")
LINKS = {
    "lan": "lan",
    "wan": f"delay:0-{DELAY_S}s,bytes:{LINK_BYTES_PER_S}",
    "spot": "lan",
}
METHODS: dict[str, dict[str, Any]] = {
    "rolling": {"topology": "rolling", "lr": 0.5},
    "random-k": {"topology": "random-k:k=5", "lr": 0.5},
    "H=30": {"topology": "rolling", "lr": 0.1, "local_steps": 30},
}
CASES = {
    f"{links}-{method}": {"links": LINKS[links], **settings}
    for links in LINKS
    for method, settings in METHODS.items()
}
"""Fields of each world by name. The availability of a spot market is added later."""


def list_absences(market: str, peers: int, seed: int, until_s: float) -> list[tuple[int, int, int]]:
    """Return each absence on a spot market: the peer, and the whole seconds at which it leaves and
    returns."""
    availability = read_availability(market, peers, seed)
    absences = []
    for peer in range(STABLE_PEERS, peers):
        now_s, changes = 0.0, []
        while (now_s := availability.next_change(peer, now_s)) < until_s:
            changes.append(math.ceil(now_s))
        absences += [(peer, *span) for span in list(pairwise(changes))[::2] if span[0] < span[1]]
    return absences


def write_trace(
    path: Path, peers: int, absences: list[tuple[int, int, int]], start_s: float
) -> None:
    """Write the availability of the peers. After an absence a peer needs ``start_s`` seconds to
    start."""
    lines = ["peer,from_s,to_s"]
    for peer in range(peers):
        begin = 0.0
        for _, leaves, returns in (each for each in absences if each[0] == peer):
            if leaves > begin:
                lines.append(f"{peer},{begin},{leaves}")
                begin = returns + start_s
        lines.append(f"{peer},{begin},")
    path.write_text("\n".join(lines), "utf-8")


def predict(parts: Parts, engine: EngineName, options: argparse.Namespace) -> tuple[int, float]:
    """Return the number of rounds until the target is reached, and the seconds from the first of
    these rounds to the last; infinity if the run ends earlier."""
    first_s = None
    for moment in play_moments(engine, parts):
        first_s = moment.virtual_s if first_s is None else first_s
        if moment.rounds % options.every == 0:
            present = moment.parameters[np.flatnonzero(moment.present)]
            if mean_accuracy(parts, present) >= options.target:
                return moment.rounds, moment.virtual_s - first_s
        if moment.rounds >= options.rounds:
            break
    return options.rounds, math.inf


def read_time(parts: Parts, run: Path, rounds: int, options: argparse.Namespace) -> float:
    """Return the seconds from the first round to the target, by the clocks of the stable peers."""
    for round_id in range(options.every, rounds + 1, options.every):
        if saved_accuracy(parts, run, round_id) >= options.target:
            first_s, last_s = (
                statistics.median(reached_s(run, peer, each) for peer in range(STABLE_PEERS))
                for each in (1, round_id)
            )
            return last_s - first_s
    return math.inf


def time_case(
    world: World, faults: Iterable[str], options: argparse.Namespace, place: Path
) -> dict[str, float]:
    """Return the seconds to the target: predicted by each engine, and measured in a real run."""
    parts = world.build()
    engines: tuple[EngineName, ...] = ("exact", "fast")
    predicted = {engine: predict(parts, engine, options) for engine in engines}
    row = {engine: seconds for engine, (_, seconds) in predicted.items()}
    if options.no_run:
        return row | {"real": math.nan}
    rounds = math.ceil(MARGIN * max(rounds for rounds, _ in predicted.values()))
    run = run_real(world, rounds, options.every, place, faults)
    return row | {"real": read_time(parts, run, rounds, options)}


def main() -> int:
    arguments = parser(__doc__, "of the worlds")
    arguments.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments.add_argument("--target", type=float, default=0.95)
    arguments.add_argument("--every", type=int, default=2, help="rounds between evaluations")
    arguments.add_argument("--rounds", type=int, default=240, help="maximum rounds of a run")
    arguments.add_argument(
        "--step", type=float, default=0.1, help="duration of a local step, in seconds"
    )
    arguments.add_argument("--market", default="spot:20s:5s")
    arguments.add_argument(
        "--start", type=float, default=4.0, help="start time of a peer, in seconds"
    )
    arguments.add_argument("--no-run", action="store_true", help="predict only")
    options = arguments.parse_args()
    found: dict[str, dict[str, float]] = {}
    print("| case | exact | fast | real | real / exact | real / fast |\n|---|---|---|---|---|---|")
    with folder(options.into) as place:
        for case in options.cases:
            settings = CASES[case]
            update_s = options.step * settings.get("local_steps", 1)
            compute = f"uniform:{0.9 * update_s}:{1.1 * update_s}"
            world = World(peers=options.peers, seed=options.seed, compute=compute, **settings)
            faults: tuple[str, ...] = WAN if case.startswith("wan") else ()
            if case.startswith("spot"):
                absences = list_absences(options.market, options.peers, options.seed, 300.0)
                faults = tuple(f"restart:{p}@{a}s+{b - a}s" for p, a, b in absences)
                trace = place / f"{case}.csv"
                write_trace(trace, options.peers, absences, options.start)
                world = world.replace(availability=str(trace))
            found[case] = row = time_case(world, faults, options, place / case)
            print(
                f"| {case} | {row['exact']:.1f} | {row['fast']:.1f} | {row['real']:.1f} "
                f"| {row['real'] / row['exact']:.3f} | {row['real'] / row['fast']:.3f} |",
                flush=True,
            )
    missed = [
        case
        for case, row in found.items()
        if not options.no_run and not abs(row["real"] / row["exact"] - 1) <= GOAL
    ]
    return conclude(found, options.json, missed)


if __name__ == "__main__":
    sys.exit(main())
