"""``gossip simulate``: thousands of fault schedules on a virtual clock. Failing schedules are
shrunk, and can be replayed."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import optional
from gossip.launch.report import counted
from gossip_lab.pages import write_text
from gossip_lab.progress import ProgressBar

if TYPE_CHECKING:
    from gossip_lab.simulation import CampaignTally, SearchQuery, Shrunk, SimulationResult

SEEDS = 200
SHRUNK_MAX = 3  # maximum number of violated invariants for which an example is shrunk
SHOWN_MAX = 10
SEEDS_SHOWN = 50


def simulate(
    seeds: Annotated[
        int | None, optional(f"How many schedules to play; {SEEDS} by default.")
    ] = None,
    first_seed: Annotated[int, typer.Option(help="The seed to begin with.")] = 0,
    peers: Annotated[
        int | None, optional("Peers of each swarm; 4 to 9, at random, by default.", "-n", "--peers")
    ] = None,
    topology: Annotated[str | None, optional("Topology of exchanges; random by default.")] = None,
    aggregator: Annotated[
        str | None, optional("Aggregation rule; random by default, with --faults mean.")
    ] = None,
    faults: Annotated[
        Path | None, optional("Play the faults of a plan file (TOML) instead of random ones.")
    ] = None,
    pipelines: Annotated[
        bool,
        typer.Option(
            "--pipelines", help="Play random pipelines: peers in stages, each with some layers."
        ),
    ] = False,
    minutes: Annotated[
        float | None, optional("Maximum time, in minutes; --seeds also ends the search.")
    ] = None,
    jobs: Annotated[int | None, optional("Processes; one for each CPU by default.")] = None,
    replay: Annotated[
        int | None, optional("Play this one seed and report on it.", metavar="SEED")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With one schedule: print all events.")
    ] = False,
    picture: Annotated[
        Path | None, optional("With one schedule: draw its last events into this SVG file.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the plans of failing schedules.")] = Path(),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to stdout.")
    ] = False,
) -> None:
    """Play fault schedules in a simulated swarm and look for violated guarantees:
    gossip simulate --seeds 2000"""
    from gossip.faults import plan as plans
    from gossip_lab.simulation import SearchQuery

    plan = None if faults is None else plans.load(faults)
    is_default = replay is seeds is minutes is None
    one = plan.simulate.get("seed") if plan is not None and is_default else replay
    if one is None and (trace or picture is not None):
        raise ConfigError("--trace and --picture need a single schedule", "--replay SEED")
    if replay is not None and (seeds is not None or minutes is not None):
        raise ConfigError("--replay plays one seed: it allows neither --seeds nor --minutes")
    count = 1 if one is not None else SEEDS if is_default else seeds
    if (count is not None and count < 1) or (minutes is not None and not minutes > 0):
        few = [f"{count} seeds"] * (count is not None) + [f"{minutes} minutes"] * (
            minutes is not None
        )
        raise ConfigError(f"nothing to play: {', '.join(few)}", "--seeds 200")
    first = first_seed if one is None else one
    drawn = peers, topology, aggregator, plan
    if pipelines and any(given is not None for given in drawn):
        raise ConfigError(
            "--pipelines chooses peers, topology, rule and faults itself", "leave these out"
        )
    question = SearchQuery(first, count, peers, topology, aggregator, plan, pipelines)
    question.check_rule(first)  # Report errors in the options before anything starts.
    if not out.is_dir():
        raise ConfigError(f"there is no folder {out} to write plans into")
    console = _Console(as_json)
    if one is not None:
        raise typer.Exit(_play_one(question, one, console, trace, picture))
    workers = jobs if jobs is not None else len(os.sched_getaffinity(0))
    if workers < 1:
        raise ConfigError(f"--jobs {workers}: at least one process is needed")
    raise typer.Exit(_search(question, min(workers, count or workers), minutes, out, console))


@dataclass(slots=True)
class _Console:
    """Text output of the command: on stdout, or on stderr if stdout is used for JSON."""

    as_json: bool
    began: float = field(default_factory=time.monotonic)

    def print_line(self, text: str = "") -> None:
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.began


# --- many -----------------------------------------------------------------------------------------


def _search(
    question: SearchQuery, jobs: int, minutes: float | None, out: Path, console: _Console
) -> int:
    from gossip_lab.simulation import CampaignTally, search

    tally, stopped = CampaignTally(), False
    outcomes = search(question, jobs)
    # SIGTERM then ends the processes of the search, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with ProgressBar(question.count, console.print_line) as bar:
            for outcome in outcomes:
                tally.add(outcome)
                bar.update(tally.schedules, _progress_words(tally, console))
                if outcome.violation is not None and len(tally.violations) <= SHOWN_MAX:
                    console.print_line(f"seed {outcome.schedule.seed}: {outcome.violation}")
                if minutes is not None and console.wall_s > 60 * minutes:
                    break
    except KeyboardInterrupt:
        stopped = True  # the results so far are printed below
        print(
            "interrupted: results so far (Ctrl-C again: no results)",
            file=sys.stderr,
            flush=True,
        )
    finally:
        outcomes.close()  # type: ignore[attr-defined]  # a generator: ends its processes
    wall_s = console.wall_s
    smaller = _examples(tally.violations) if stopped else _shrink(tally.violations, console)
    failures = [_conclude(outcome, small, out, console) for outcome, small in smaller]
    if question.plan is None:
        vacuous = [] if stopped else tally.vacuous
    else:
        vacuous = [f"{kind} is in the plan but never took place" for kind in tally.idle(1)]
    result = _result(tally, wall_s, failures, vacuous) | {"interrupted": stopped}
    if console.as_json:
        print(json.dumps(result))
    else:
        _table(tally, result, console)
    for line in vacuous:
        print(f"error: this campaign proves too little: {line}", file=sys.stderr)
    if stopped:
        return 130
    return 1 if tally.violations or vacuous else 0


def _examples(violations: list[SimulationResult]) -> Iterator[tuple[SimulationResult, Shrunk]]:
    """Yield an example for each violated invariant: the run with the lowest seed, not shrunk."""
    from gossip_lab.simulation import Shrunk

    examples: dict[str, SimulationResult] = {}
    for outcome in sorted(violations, key=lambda outcome: outcome.schedule.seed):
        assert outcome.violation is not None
        examples.setdefault(outcome.violation.invariant, outcome)
    for outcome in list(examples.values())[:SHRUNK_MAX]:
        yield outcome, Shrunk(outcome)


def _shrink(
    violations: list[SimulationResult], console: _Console
) -> Iterator[tuple[SimulationResult, Shrunk]]:
    """Shrink the examples of ``_examples``, and yield the original and the shrunk result of
    each."""
    from gossip_lab.simulation import play, shrink

    for outcome, whole in _examples(violations):
        assert outcome.violation is not None
        console.print_line(
            f"shrinking seed {outcome.schedule.seed} ({outcome.violation.invariant}) ..."
        )
        try:
            yield outcome, shrink(outcome, play.run)
        except KeyboardInterrupt:
            console.print_line("interrupted: the plan is not shrunk further")
            yield outcome, whole


def _conclude(
    outcome: SimulationResult, small: Shrunk, out: Path, console: _Console
) -> dict[str, Any]:
    """Write the plan of a failing schedule and print the command that replays it."""
    found, seed = small.outcome.violation, outcome.schedule.seed
    assert found is not None
    plan = small.schedule.plan.to_toml()
    path = out / f"simulate-{seed}-{found.invariant}.toml"
    path.write_text(f"# {found}\n{plan}", "utf-8")
    command = f"gossip simulate --faults {path} --picture {path.with_suffix('.svg')}"
    before, after = outcome.schedule, small.schedule
    smaller = (
        f"; from {counted(len(before.faults), 'fault')} and {counted(before.peers, 'peer')} "
        f"down to {len(after.faults)} and {after.peers} in {counted(small.runs, 'run')}"
    )
    console.print_line(
        f"\nseed {seed} breaks {found.invariant}{smaller if small.runs else ''}\n  {found}\n  "
        f"replay:  {command}\n  plan:"
    )
    for line in plan.splitlines():
        console.print_line(f"    {line}".rstrip())
    return {
        "seed": seed,
        **asdict(found),
        "replay": command,
        "plan": plan,
        "plan_file": str(path),
        "trace_hash": small.outcome.trace_hash,
    }


def _result(
    tally: CampaignTally, wall_s: float, failures: list[dict[str, Any]], vacuous: list[str]
) -> dict[str, Any]:
    """Return the result that ``--json`` prints; documented in docs/simulate.md."""
    rounds = sorted(tally.rounds)
    return {
        "schema": "gossip.simulate/1",
        "schedules": tally.schedules,
        "violations": len(tally.violations),
        "violating_seeds": sorted(outcome.schedule.seed for outcome in tally.violations),
        "failures": failures,
        "vacuous": vacuous,
        "wall_s": round(wall_s, 3),
        "schedules_per_minute": round(60 * tally.schedules / wall_s, 1),
        "simulated_s": round(tally.simulated_s, 3),
        "rounds": {
            "least": rounds[0],
            "median": statistics.median_low(rounds),
            "most": rounds[-1],
            "share_of_50": round(tally.long_share, 4),
        }
        if rounds
        else None,
        "topologies": dict(sorted(tally.topologies.items())),
        "aggregators": dict(sorted(tally.aggregators.items())),
        "way_left": {
            "median": round(statistics.median(tally.left), 6),
            "most": round(max(tally.left), 6),
        }
        if tally.left
        else None,
        "faults": {
            kind: {
                "drawn": tally.drawn[kind],
                "schedules": tally.occurred[kind],
                "times": tally.struck[kind],
            }
            for kind in sorted({*tally.drawn, *tally.struck})
        },
        "kinds_of_fault": {str(kinds): count for kinds, count in sorted(tally.kinds.items())},
        "cuts": tally.cuts,
        "messages": dict(sorted(tally.counts.items())),
        "reports": dict(sorted(tally.reports.items())),
        "judged": dict(
            sorted(tally.judged.items(), key=lambda item: (item[0][0] != "S", int(item[0][1:])))
        ),
        "judged_by": dict(sorted(tally.judged_by.items())),
    }


def _table(tally: CampaignTally, result: dict[str, Any], console: _Console) -> None:
    rounds = result["rounds"]
    played = (
        f"{counted(tally.schedules, 'schedule')}, {tally.simulated_s:.0f} simulated seconds "
        f"in {result['wall_s']:.1f} s: {result['schedules_per_minute']:.0f} schedules/min"
    )
    if rounds:
        played += (
            f"; rounds: {rounds['least']} to {rounds['most']}, median {rounds['median']}; "
            f"{rounds['share_of_50']:.1%} reached round 50"
        )
    console.print_line(played)
    console.print_line(f"topologies: {_counts(result['topologies'])}")
    left = result["way_left"]
    rules = (
        f"rules: {_counts(result['aggregators'])}; called "
        f"{counted(tally.judged_by['RuleAvailability'], 'time')} with as many updates as they need"
    )
    if left:
        rules += (
            f"; way to the optimum left at the end: {100 * left['median']:.3g} % (median), "
            f"{100 * left['most']:.3g} % (most)"
        )
    console.print_line(rules)
    kinds = {f"{kinds}:": count for kinds, count in result["kinds_of_fault"].items()}
    console.print_line(f"schedules in which each kind of fault took place: {_counts(kinds)}")
    console.print_line(f"{'fault':<20}{'schedules':>10}{'times':>9}")
    for kind, seen in result["faults"].items():
        console.print_line(f"{kind:<20}{seen['schedules']:>10}{seen['times']:>9}")
    messages = result["messages"]
    traffic = ("sent", "lost", "cut", "duplicated", "corrupted", "malformed")
    console.print_line(f"messages: {_counts({key: messages.get(key, 0) for key in traffic})}")
    told = ("suspect", "dead", "alive_again", "skip", "attempt", "lost_round", "restored", "fork")
    console.print_line(f"peers reported: {_counts({key: tally.reports[key] for key in told})}")
    console.print_line(f"judged: {_counts(result['judged'])}")
    seeds = result["violating_seeds"]
    more = (
        f" and {len(seeds) - SEEDS_SHOWN} more (--json names all)"
        if len(seeds) > SEEDS_SHOWN
        else ""
    )
    console.print_line(
        f"violations: {len(seeds)}, with the seeds {', '.join(map(str, seeds[:SEEDS_SHOWN]))}{more}"
        if seeds
        else "no violation"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {count}" for key, count in counts.items())


def _progress_words(tally: CampaignTally, console: _Console) -> str:
    return (
        f"{60 * tally.schedules / console.wall_s:.0f} schedules/min, "
        f"{counted(len(tally.violations), 'violation')}, "
        f"{counted(len(tally.occurred), 'kind')} of fault"
    )


# --- one ------------------------------------------------------------------------------------------


def _play_one(
    question: SearchQuery, seed: int, console: _Console, trace: bool, picture: Path | None
) -> int:
    """Play one schedule and print its result. Return the exit code."""
    from gossip_lab.simulation import CampaignTally, Chart, draw, run

    schedule = question.schedule(seed)
    chart = Chart(None if trace else 20_000)
    outcome = run(schedule, [chart])
    tally = CampaignTally()
    tally.add(outcome)
    idle = tally.idle(1)
    proves_too_little = bool(idle) and question.plan is not None and outcome.violation is None
    if trace:
        for line in chart.lines:
            console.print_line(str(line))
    if picture is not None:
        write_text(picture, draw(outcome, chart))
    if console.as_json:
        found = outcome.violation
        print(
            json.dumps(
                {
                    "schema": "gossip.simulate.one/1",
                    "seed": schedule.seed,
                    "plan": schedule.plan.to_toml(),
                    "violation": asdict(found) if found is not None else None,
                    "trace_hash": outcome.trace_hash,
                    "rounds": outcome.rounds,
                    "simulated_s": outcome.simulated_s,
                    "faults": dict(outcome.struck),
                    "idle": idle,
                    "messages": dict(outcome.counts),
                    "reports": dict(outcome.reports),
                    "judged": dict(outcome.judged),
                    "aggregator": schedule.aggregator,
                    "way_left": round(outcome.left, 6) if isfinite(outcome.left) else None,
                }
            )
        )
        return 1 if found or proves_too_little else 0
    console.print_line(
        f"seed {schedule.seed}: {counted(schedule.peers, 'peer')}, {schedule.weighted_topology}, "
        f"{schedule.aggregator}"
    )
    for fault in schedule.faults:
        console.print_line(f"  {fault}")
    console.print_line(f"took place: {_counts(outcome.struck) or 'no fault'}")
    if idle:
        console.print_line(
            f"did not take place: {', '.join(idle)} (faults begin before active_s = "
            f"{schedule.active_s:g})"
        )
    console.print_line(
        f"{counted(outcome.rounds, 'round')} in {outcome.simulated_s:.2f} simulated seconds, "
        f"trace {outcome.trace_hash}"
    )
    if isfinite(outcome.left):
        console.print_line(
            f"the rule: way to the optimum left at the end: {100 * outcome.left:.3g} %"
        )
    if picture is not None:
        console.print_line(f"picture: {picture}")
    console.print_line(f"violated: {outcome.violation}" if outcome.violation else "no violation")
    if proves_too_little:
        print(
            f"error: the plan proves too little: {', '.join(idle)} never took place",
            file=sys.stderr,
        )
    return 1 if outcome.violation or proves_too_little else 0
