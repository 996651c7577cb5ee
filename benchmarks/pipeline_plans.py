"""Plans on five unequal peers, run as real processes: does a step take what was predicted, and what
is the best plan worth?

    python benchmarks/pipeline_plans.py                 # six plans, ten minutes, nothing computed
    python benchmarks/pipeline_plans.py --worth         # against equal cuts and data-parallel

Layers take a stated time and compute nothing, so peers of speeds 1 to 8 fit two cores. Each peer's
layers are timed as ``gossip plan profile`` does it. The payloads that a peer sends get through at
its own rate, 20 to 1,000 Mbit/s, to each other peer (the fault ``trickle``, of gossip's own
transport). The cost of a link is that of a loopback link, as ``gossip plan link`` measures it, and
the bytes at that rate. The time of a step is the median between two commits of the last stage,
behind the first ones. Exit 1 when a step is more than 15 % off, or with ``--worth`` when the plan
is not 1.5 times as fast as the slower of the others, or slower than the faster.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pipeline_train
import torch
from whole_runs import GOSSIP, HERE, conclude, environment, folder, summary_of

from gossip.run.telemetry import read_lines
from gossip_pipelines.plan.linking import measure_link
from gossip_pipelines.planning import (
    CostLine,
    Costs,
    PeerProfile,
    PipelinePlan,
    PlannedStage,
    PlanRequest,
    check_plan,
    costs_of,
    make_plan,
    measure_layers,
    plan_of,
    played_step_s,
    read_profile,
    write_plan,
    write_profile,
)

TRAIN = HERE / "pipeline_train.py"
SPEEDS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 5.0, "e": 8.0}
MBIT = {"a": 100.0, "b": 1000.0, "c": 50.0, "d": 20.0, "e": 300.0}
"""Bandwidth from each peer to any other, in Mbit/s."""
SAMPLES, BATCH = 2, 20
SIZES = 1, 4  # samples at which layers are timed
MEMORY_BYTES = 2**30
WARM_UP = 4  # steps that do not count
WHOLE_STEPS, EQUAL_UNTIL, PACED_FROM = 41, 15, 34
"""Data-parallel rounds; shares change behind the 16th and the 32nd."""
OFF_MAX, WORTH_LEAST = 0.15, 1.5
PLANS: dict[str, list[tuple[int, tuple[str, ...]]]] = {
    # of each stage its number of layers, and its peers
    "equal cuts, as named": [(2, ("a",)), (2, ("b",)), (2, ("c",)), (2, ("d",)), (2, ("e",))],
    "by speed": [(1, ("a",)), (1, ("b",)), (1, ("c",)), (3, ("d",)), (4, ("e",))],
    "behind the slowest link": [(4, ("d",)), (6, ("e",))],
    "two groups": [(5, ("a", "e")), (5, ("b", "c", "d"))],
    "speeds 1 and 3": [(6, ("e",)), (4, ("a", "c"))],
    "a group in the middle": [(2, ("c",)), (5, ("b", "e")), (3, ("d",))],
}
EQUAL = "equal cuts, as named"


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of each step behind the warm-up."""

    steps_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worth", action="store_true", help="only what the best plan is worth")
    parser.add_argument("--only", help="one of the plans, by a part of its name")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--into", type=Path, help="where runs go, and stay")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with folder(options.into) as into:
        costs = costs_of([read_profile(path) for path in profiles(into)])
        compare = worth if options.worth else predictions
        return compare(costs, into, options)


# --- what is predicted ----------------------------------------------------------------------------


def profiles(into: Path) -> list[Path]:
    """Return the profiles of the five peers. Their layers are timed here, at the same time, since
    they only sleep. If all exist already, they are kept."""
    paths = [into / f"{name}.toml" for name in SPEEDS]
    if all(path.exists() for path in paths):
        return paths
    link = measure_link("127.0.0.1", "127.0.0.1", "", 7)[0]
    print(f"a loopback link: {1e3 * link.fixed_s:.2f} ms, {8e-6 / link.each_s:,.0f} Mbit/s")
    with ThreadPoolExecutor(len(SPEEDS)) as pool:
        found = list(pool.map(lambda name: profile(name, link), SPEEDS))
    for path, each in zip(paths, found, strict=True):
        path.write_text(write_profile(each), "utf-8")
    return paths


def profile(name: str, link: CostLine) -> PeerProfile:
    layers, samples = pipeline_train.unequal(SPEEDS[name])
    found = measure_layers(layers, samples, SIZES, repeats=1)
    line = CostLine(link.fixed_s, link.each_s + 8e-6 / MBIT[name])
    links = {to: line for to in SPEEDS if to != name}
    return PeerProfile(name, MEMORY_BYTES, SIZES, found.layers, links)


def best_plan(costs: Costs) -> PipelinePlan:
    best = make_plan(costs, PlanRequest(BATCH, SAMPLES)).pipelines[0]
    return plan_of(costs, best.stage_costs.work, best.placement, best.played_s)


def planned(costs: Costs, stages: Sequence[tuple[int, tuple[str, ...]]]) -> PipelinePlan:
    """With what is predicted of it."""
    placed, at = [], 0
    for layers, peers in stages:
        placed.append(PlannedStage((at, at + layers - 1), peers))
        at += layers
    plan = PipelinePlan(costs.model, BATCH // SAMPLES, SAMPLES, 1, 1.0, tuple(placed))
    stage_costs, placement = check_plan(plan, costs)
    return plan_of(costs, stage_costs.work, placement, played_step_s(stage_costs, placement))


# --- what is measured -----------------------------------------------------------------------------


def run(name: str, words: Sequence[str], peers: Sequence[str], into: Path) -> list[dict[str, Any]]:
    """Commits of a run of these peers, in their order. Raises: SystemExit: It did not end well."""
    where = into / name.replace(" ", "-").replace(",", "")
    trickles = [
        f"trickle:{at}*{MBIT[peer] * 1e6 / 8:.0f}@0s+3600s" for at, peer in enumerate(peers)
    ]
    faults = [word for each in trickles for word in ("--fault", each)]
    speeds = ",".join(f"{SPEEDS[peer]:g}" for peer in peers)
    command = [*GOSSIP, "run", "--run-dir", str(where), "--json", "--start-timeout", "300"]
    command += [*faults, *words]
    command += [*("--speeds", speeds)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=False)
    summary = summary_of(where)
    if done.returncode:
        raise SystemExit(f"{where} ended {summary['status']} after {summary['rounds']} rounds")
    return [row for row in read_lines(where / "commits.jsonl") if "round" in row]


def measured(rows: Sequence[dict[str, Any]], stage: int) -> Measured:
    began = sorted({row["round"]: row["wall"] for row in rows if row.get("stage") == stage}.items())
    walls = [wall for _, wall in began]
    return Measured(tuple(after - before for before, after in list(pairwise(walls))[WARM_UP:]))


def measure(name: str, plan: PipelinePlan, steps: int, into: Path) -> Measured:
    path = into / "plan.toml"
    path.write_text(write_plan(plan), "utf-8")
    words = ["--plan", str(path), str(TRAIN), "unequal", "--steps", str(steps)]
    words += ["--rows", str(BATCH)]
    rows = run(name, words, [peer for stage in plan.stage for peer in stage.peers], into)
    return measured(rows, len(plan.stage) - 1)


# --- the tables -----------------------------------------------------------------------------------


def predictions(costs: Costs, into: Path, options: argparse.Namespace) -> int:
    plans = {"the best": best_plan(costs)}
    plans |= {name: planned(costs, stages) for name, stages in PLANS.items()}
    print("| plan | stages | predicted, s | measured, s | quartiles | off |")
    print("|---|---|---|---|---|---|")
    numbers: dict[str, Any] = {}
    for name, plan in plans.items():
        if options.only and options.only not in name:
            continue
        found = measure(name, plan, options.steps, into)
        off = found.step_s / plan.predicted_step_s - 1
        low, _, high = statistics.quantiles(found.steps_s, n=4)
        print(
            f"| {name} | {shape(plan)} | {plan.predicted_step_s:.3f} | {found.step_s:.3f} | "
            f"{low:.3f}, {high:.3f} | {off:+.1%} |",
            flush=True,
        )
        numbers[name] = {"predicted_s": plan.predicted_step_s, "off": off, "s": found.steps_s}
    return conclude(numbers, options.json, any(abs(x["off"]) > OFF_MAX for x in numbers.values()))


def shape(plan: PipelinePlan) -> str:
    return " \\| ".join(
        f"{stage.layers[1] - stage.layers[0] + 1} {'+'.join(stage.peers)}" for stage in plan.stage
    )


@dataclass(frozen=True, slots=True)
class Whole:
    """Steps of ``BATCH`` samples a second of data-parallel training: while all peers get equal
    parts, and once slow ones get as much less as they ever do."""

    equal: float
    paced: float


def worth(costs: Costs, into: Path, options: argparse.Namespace) -> int:
    plan, equal = best_plan(costs), planned(costs, PLANS[EQUAL])
    chosen = measure("the plan", plan, options.steps, into).step_s
    cut = measure("equal cuts", equal, options.steps, into).step_s
    whole = data_parallel(into)
    rates = {
        f"the plan: {shape(plan)}": 1 / chosen,
        f"equal cuts: {shape(equal)}": 1 / cut,
        "data-parallel, equal parts": whole.equal,
        "data-parallel, parts by speed": whole.paced,
    }
    print(f"| | steps of {BATCH} samples a second | the plan over it |\n|---|---|---|")
    for name, steps in rates.items():
        print(f"| {name} | {steps:.3f} | {1 / chosen / steps:.2f} |")
    best, *others = rates.values()
    wrong = best < WORTH_LEAST * min(others) or best < max(others)
    return conclude(rates, options.json, wrong)


def data_parallel(into: Path) -> Whole:
    """All peers with all layers each, as ``gossip run`` does it by default."""
    rows = str(BATCH // len(SPEEDS))
    words = ["-n", str(len(SPEEDS)), str(TRAIN), "unequal", "--whole", "--steps", str(WHOLE_STEPS)]
    commits = run("data-parallel", [*words, "--rows", rows], list(SPEEDS), into)
    by_round = {row["round"]: row for row in commits}
    in_order = [by_round[at] for at in sorted(by_round)]
    return Whole(rate(in_order[WARM_UP:EQUAL_UNTIL]), rate(in_order[PACED_FROM:]))


def rate(rows: Sequence[dict[str, Any]]) -> float:
    """Steps of ``BATCH`` samples a second, by commits of data-parallel rounds."""
    used = sum(each["samples"] for row in rows[1:] for each in row["contributors"])
    return float(used / BATCH / (rows[-1]["wall"] - rows[0]["wall"]))


if __name__ == "__main__":
    sys.exit(main())
