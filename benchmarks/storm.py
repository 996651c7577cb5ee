"""Eight peers with local steps in a storm: kills, a slow peer, a peer that is cut off, each at
random times. What does it cost beside a run without faults?

    python benchmarks/storm.py --into storm --json storm.json      # an hour: two runs of 30 minutes
    python benchmarks/storm.py --minutes 10

Faults come as in the storm of ft-diloco (https://github.com/Neumann-Labs/ft-diloco), as Poisson
processes with a seed: each 60 s somebody is killed and started again, each 240 s somebody is four
times slower for 30 s, each 300 s somebody is cut off for 20 s. They are a plan of ``gossip run
--faults``. The steps of ``paced_train.py`` mostly sleep, so that all peers fit on few cores.

Measured from the first commit on: the share of rounds that have a result; how many of those alive
took part; the samples used, as a share of what the fault-free run would have used in that time
without the killed peers between their deaths and the end of their imports; how long each killed
peer took from there to its first update in a commit; how much later than usual the first commit
after a kill came; and the loss at equal numbers of samples.

Exit 1 when a bar is missed, replicas differ, or a sample was used twice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whole_runs import GOSSIP, HERE, conclude, environment, folder, parser, summary_of

from gossip.faults import Fault, FaultPlan, Partition, Restart, Slow
from gossip.run.telemetry import read_lines

SCRIPT = HERE / "paced_train.py"
KILL_EVERY_S, RESTART_S, APART_S = 60.0, 1.0, 15.0
SLOW_EVERY_S, SLOW_S, SLOW_FACTOR = 240.0, 30.0, 4.0
CUT_EVERY_S, CUT_S = 300.0, 20.0
CALM_S = 10.0
"""Without new faults, at either end of a run."""
START_S, END_S = 240.0, 120.0
BARS = {
    "rounds committed": (">=", 0.99),
    "participation": (">=", 0.9),
    "throughput": (">=", 0.97),
    "slowest return, s": ("<", 5.0),
    "latest commit, s": ("<=", 0.5),
    "loss over fault-free": ("<=", 0.01),
}


# --- the plan -------------------------------------------------------------------------------------


def storm(seed: int, peers: int, lasts_s: float) -> FaultPlan:
    """Nobody is killed twice within ``APART_S``, so that each return can be told from the next."""
    kills, slows, cuts = (random.Random(f"{kind}/{seed}") for kind in ("kill", "slow", "cut"))
    faults: list[Fault] = []
    killed_at: dict[int, float] = {}
    for at_s in _arrivals(kills, KILL_EVERY_S, lasts_s):
        others = [p for p in range(peers) if at_s - killed_at.get(p, -APART_S) >= APART_S]
        peer = kills.choice(others)
        killed_at[peer] = at_s
        faults.append(Restart(peer, None, RESTART_S, at_s))
    for at_s in _arrivals(slows, SLOW_EVERY_S, lasts_s):
        faults.append(Slow(slows.randrange(peers), SLOW_FACTOR, at_s, SLOW_S))
    for at_s in _arrivals(cuts, CUT_EVERY_S, lasts_s):
        peer = cuts.randrange(peers)
        rest = tuple(other for other in range(peers) if other != peer)
        faults.append(Partition(((peer,), rest), at_s, CUT_S))
    return FaultPlan(tuple(faults)).real().checked(peers)


def _arrivals(draw: random.Random, every_s: float, lasts_s: float) -> Iterator[float]:
    at_s = CALM_S + draw.expovariate(1 / every_s)
    while at_s < lasts_s - CALM_S:
        yield round(at_s, 3)
        at_s += draw.expovariate(1 / every_s)


# --- a run ----------------------------------------------------------------------------------------


def play(run: Path, options: argparse.Namespace, plan: FaultPlan | None) -> None:
    """Raises: SystemExit: The run did not begin, or did not end well."""
    faults: list[str] = []
    if plan is not None:
        file = run.with_suffix(".toml")
        file.write_text(plan.to_toml())
        faults = ["--faults", str(file)]
    command = [
        *[*GOSSIP, "run", "-n", str(options.peers), "--aggregator", options.aggregator],
        *["--local-steps", str(options.local_steps), "--run-dir", str(run), "--quiet", *faults],
        *[str(SCRIPT), "--local-steps", str(options.local_steps)],
        *["--pause", str(options.pause)],
    ]
    log = run.with_suffix(".log")
    with log.open("w") as out:
        launcher = subprocess.Popen(command, stdout=out, stderr=out, env=environment())
        try:
            _until(lambda: bool(commits_of(run)), START_S, f"the run does not start: {log}")
            ends_at = time.monotonic() + 60 * options.minutes
            _until(lambda: time.monotonic() > ends_at or launcher.poll() is not None, 1e9, "")
            if launcher.poll() is None:
                end(run)
            if launcher.wait(END_S):
                raise SystemExit(f"exit code {launcher.returncode}: {log}")
        finally:
            if launcher.poll() is None:
                launcher.terminate()
                launcher.wait(END_S)


def end(run: Path) -> None:
    """Its peers end behind a round that none of them has come to yet."""
    (run / "until.new").write_text(str(commits_of(run)[-1]["round"] + 3))
    (run / "until.new").rename(run / "until")


def _until(what: Callable[[], bool], within_s: float, complaint: str) -> None:
    ends = time.monotonic() + within_s
    while not what():
        if time.monotonic() > ends:
            raise SystemExit(complaint)
        time.sleep(0.5)


# --- what is measured -----------------------------------------------------------------------------


def commits_of(run: Path) -> list[dict[str, Any]]:
    """One a round, ascending; of all peers, as the run's own file is whole at its end only."""
    found: dict[int, dict[str, Any]] = {}
    for file in (run / "commits.jsonl", *run.glob("peer-*/commits.jsonl")):
        if file.exists():
            found.update({row["round"]: row for row in read_lines(file) if "round" in row})
    return [found[number] for number in sorted(found)]


@dataclass(frozen=True)
class Return:
    """A peer that was killed: when, and seconds until its imports were over, and from there to the
    first commit with its update; None: it never came to that."""

    peer: int
    at: float
    dead_s: float
    back_s: float | None
    late_s: float  # the first commit behind the kill, beyond what is usual


@dataclass(frozen=True)
class Measured:
    """One run, between its first and its last commit."""

    rounds: int
    committed: float
    participation: float
    samples: int
    lasted_s: float
    gap_s: float  # the median between two commits
    upto: list[int]  # samples used up to each round, that one included
    losses: list[tuple[int, float]]  # by rounds
    returns: list[Return]

    def loss_at(self, samples: int) -> float:
        """The mean of the losses around the round in which so many had been used: of a tenth of
        the rounds before."""
        last = bisect_left(self.upto, samples)
        near = [loss for at, loss in self.losses if 0.9 * last <= at <= last + 1]
        return statistics.fmean(near)


def measured(run: Path) -> Measured:
    rows = commits_of(run)
    times = [row["t"] for row in rows]
    given = [{each["peer"]: each["samples"] for each in row["contributors"]} for row in rows]
    losses: dict[int, float] = {}
    imported: dict[int, list[float]] = {}
    for file in run.glob("losses-*.jsonl"):
        told = [json.loads(line) for line in file.read_text().splitlines()]
        imported[int(file.stem.split("-")[1])] = [t["imported"] for t in told if "imported" in t]
        losses |= {row["round"]: row["loss"] for row in told if "loss" in row}
    gap_s = statistics.median(b - a for a, b in itertools.pairwise(times))
    killed = [
        (row["peer"], row["t"])
        for row in read_lines(run / "events.jsonl")
        if row.get("event") == "fault" and row.get("kind") == "restart"
    ]
    summary = summary_of(run)
    return Measured(
        rounds=len(rows),
        committed=sum(bool(each) for each in given) / len(rows),
        participation=summary["participation"]["mean"],
        samples=sum(sum(each.values()) for each in given[1:]),
        lasted_s=times[-1] - times[0],
        gap_s=gap_s,
        upto=list(itertools.accumulate(sum(each.values()) for each in given)),
        losses=sorted(losses.items()),
        returns=[
            _returned((peer, at), imported[peer], list(zip(times, given, strict=True)), gap_s)
            for peer, at in killed
            if times[0] < at < times[-1]
        ],
    )


def _returned(
    killed: tuple[int, float],
    imported: list[float],
    commits: list[tuple[float, dict[int, int]]],
    gap_s: float,
) -> Return:
    """Args:
    killed: Who, and when.
    imported: When each of its lives had its imports.
    commits: When each was made, and on how many samples of whom.
    """
    peer, at = killed
    times = [t for t, _ in commits]
    here = min((t for t in imported if t > at), default=times[-1])
    first = bisect_right(times, at)
    back = next((t for t, who in commits if t > here and peer in who), None)
    late_s = times[first] - times[first - 1] - gap_s
    return Return(peer, at, here - at, None if back is None else back - here, late_s)


def beside(struck: Measured, alone: Measured, peers: int) -> dict[str, float]:
    """The numbers that have a bar."""
    rate = alone.samples / alone.lasted_s
    dead_s = sum(each.dead_s for each in struck.returns)
    could = rate * struck.lasted_s - rate / peers * dead_s
    common = min(struck.upto[-1], alone.upto[-1])
    back = [each.back_s if each.back_s is not None else float("inf") for each in struck.returns]
    return {
        "rounds committed": struck.committed,
        "participation": struck.participation,
        "throughput": struck.samples / could,
        "slowest return, s": max(back, default=0.0),
        "latest commit, s": max((each.late_s for each in struck.returns), default=0.0),
        "loss over fault-free": struck.loss_at(common) / alone.loss_at(common) - 1,
    }


def missed(numbers: dict[str, float]) -> list[str]:
    """The bars that a run does not come up to."""
    reached: dict[str, Callable[[float, float], bool]] = {
        ">=": lambda value, bar: value >= bar,
        "<=": lambda value, bar: value <= bar,
        "<": lambda value, bar: value < bar,
    }
    return [
        f"{what}: {numbers[what]:.4f}, the bar is {how} {bar:g}"
        for what, (how, bar) in BARS.items()
        if not reached[how](numbers[what], bar)
    ]


def page(numbers: dict[str, Any], struck: Measured, alone: Measured, plan: FaultPlan) -> str:
    back = sorted(each.back_s for each in struck.returns if each.back_s is not None)
    late = sorted(each.late_s for each in struck.returns)
    kinds = [sum(isinstance(fault, kind) for fault in plan) for kind in (Restart, Slow, Partition)]
    lines = [
        f"{struck.lasted_s:.0f} s, {struck.rounds} rounds of {struck.gap_s:.2f} s; fault-free "
        f"{alone.lasted_s:.0f} s, {alone.rounds} rounds of {alone.gap_s:.2f} s",
        f"{kinds[0]} kills ({len(struck.returns)} struck), {kinds[1]} slow, {kinds[2]} cut off",
        f"samples/s {struck.samples / struck.lasted_s:.0f}, fault-free "
        f"{alone.samples / alone.lasted_s:.0f}; dead for "
        f"{sum(each.dead_s for each in struck.returns):.1f} s in all",
    ]
    if back:
        lines.append(
            f"back in {back[0]:.2f} / {statistics.median(back):.2f} / {back[-1]:.2f} s (least, "
            f"median, most); next commit late by {late[0]:.2f} / {statistics.median(late):.2f} / "
            f"{late[-1]:.2f} s"
        )
    lines += [
        f"{what}: {numbers[what]:.4f} (bar {how} {bar:g})" for what, (how, bar) in BARS.items()
    ]
    return "\n".join(lines)


def main() -> int:
    made = parser(__doc__, peers=8, seed="of the storm")
    made.set_defaults(seed=7)
    made.add_argument("--minutes", type=float, default=30.0, help="of each of the two runs")
    made.add_argument("--local-steps", type=int, default=20)
    made.add_argument("--pause", type=float, default=0.04, help="seconds that a step sleeps")
    made.add_argument("--aggregator", default="mean")
    made.add_argument("--only", choices=("storm", "alone"), help="one of the two runs")
    made.add_argument("--show", action="store_true", help="run nothing: measure what --into has")
    options = made.parse_args()
    plan = storm(options.seed, options.peers, 60 * options.minutes)
    with folder(options.into) as into:
        for name, faults in (("alone", None), ("storm", plan)):
            if not options.show and options.only in (None, name):
                play(into / name, options, faults)
        if options.only and not options.show:
            return 0
        struck, alone = measured(into / "storm"), measured(into / "alone")
        ends = [summary_of(into / name) for name in ("alone", "storm")]
    numbers: dict[str, Any] = beside(struck, alone, options.peers)
    print(page(numbers, struck, alone, plan))
    wrong = missed(numbers)
    wrong += ["replicas differ" for each in ends if each["replicas_identical"] is not True]
    wrong += ["samples were used twice" for each in ends if (each["samples"] or {}).get("twice")]
    for what in wrong:
        print(f"WRONG: {what}")
    numbers["returns"] = [asdict(each) for each in struck.returns]
    return conclude({**numbers, "wrong": wrong}, options.json, wrong)


if __name__ == "__main__":
    sys.exit(main())
