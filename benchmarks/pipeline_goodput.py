"""A pipeline of 3 stages with 2 peers each: whether it trains as one process does, and the cost of
members that are killed every 30 s and restarted.

    python benchmarks/pipeline_goodput.py                    # about fifteen minutes on two cores
    python benchmarks/pipeline_goodput.py --only timed --json out.json

``char`` is a transformer over characters, 8 blocks, Adam, 200 steps, once without and once with
kills; its loss of each step is compared with that of one process on the same batches. ``timed`` has
layers that take a stated time and compute nothing, in place of six devices: so the time of a step
does not depend on the number of cores. Goodput is the steps a second between the first commit and
the last, over that without kills. In each commit of each stage every micro-batch must appear once.
Exit 1 if it does not, or a bound does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pipeline_train
from whole_runs import GOSSIP, HERE, environment

from gossip.config import Activations
from gossip.run.telemetry import read_lines
from gossip_pipelines.planning import (
    PipelinePlan,
    PlannedStage,
    model_of,
    outline_of,
    walk_without_data,
    write_plan,
)

TRAIN = HERE / "pipeline_train.py"
STAGES = [((0, 3), ("a", "b")), ((4, 6), ("c", "d")), ((7, 9), ("e", "f"))]
MICRO_BATCHES, SAMPLES = 6, 2
PEERS = 6
FIRST_KILL_S = 45.0
LAST = 20  # steps at the end, over which the loss is averaged
DIFFERENCE_MAX, GOODPUT_LEAST, LOSS_OFF_MAX = 1e-4, 0.8, 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("char", "timed"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=0, help="of who is killed")
    parser.add_argument("--activations", choices=("exact", "bf16"), default="exact")
    parser.add_argument("--into", type=Path, help="where runs go, and stay")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        into = options.into or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        into.mkdir(parents=True, exist_ok=True)
        kinds = [options.only] if options.only else ["char", "timed"]
        numbers = {kind: measure(kind, into, options) for kind in kinds}
    print("\n".join(line for kind, each in numbers.items() for line in page(kind, each)))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")
    return 1 if any(each["wrong"] for each in numbers.values()) else 0


def measure(kind: str, into: Path, options: argparse.Namespace) -> dict[str, Any]:
    plan = write_plan_for(kind, into, options.activations)
    free = run(kind, plan, into / f"{kind}-free", options.steps, [])
    seconds = FIRST_KILL_S + 3 * options.steps / free["steps_per_s"]
    draw, count = random.Random(options.seed), int((seconds - FIRST_KILL_S) / options.every) + 1
    faults = [
        f"restart:{draw.randrange(PEERS)}@{FIRST_KILL_S + at * options.every:g}s+0s"
        for at in range(count)
    ]
    killed = run(kind, plan, into / f"{kind}-killed", options.steps, faults)
    numbers: dict[str, Any] = {"free": free, "killed": killed}
    numbers["goodput"] = killed["steps_per_s"] / free["steps_per_s"]
    if kind == "char":
        numbers["alone"] = alone(into, options.steps)
    numbers["wrong"] = wrong(numbers)
    return numbers


def write_plan_for(kind: str, into: Path, activations: Activations) -> Path:
    layers, samples = pipeline_train.LAYERS[kind]()
    outlines = [outline_of(layer, at) for at, layer in enumerate(layers)]
    walked = walk_without_data(outlines, samples)
    stages = tuple(PlannedStage(*each) for each in STAGES)
    model = model_of([each.signature for each in walked])
    path = into / f"{kind}.toml"
    plan = PipelinePlan(model, MICRO_BATCHES, SAMPLES, 1, 1.0, stages, activations)
    path.write_text(write_plan(plan))
    return path


def run(kind: str, plan: Path, folder: Path, steps: int, faults: Sequence[str]) -> dict[str, Any]:
    """Play a run, and return its kills, speed, commits and losses. Raises: SystemExit: It did not
    finish."""
    print(f"{folder.name}: {steps} steps, {len(faults)} kills planned", file=sys.stderr, flush=True)
    struck = [word for fault in faults for word in ("--fault", fault)]
    rows = MICRO_BATCHES * SAMPLES
    words = ["run", "--plan", str(plan), "--run-dir", str(folder), "--json", *struck]
    command = [*GOSSIP, *words, str(TRAIN), kind, "--steps", str(steps), "--rows", str(rows)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=False)
    summary = json.loads((folder / "summary.json").read_text())
    if done.returncode or summary["rounds"] != steps:
        raise SystemExit(f"{folder} ended {summary['status']} after {summary['rounds']} rounds")
    commits = [row for row in read_lines(folder / "commits.jsonl") if "round" in row]
    at = sorted(row["wall"] for row in commits if row["stage"] == len(STAGES) - 1)
    return {
        "kills": len(summary["deaths"]),
        "finished": len(summary["finished"]),
        "steps_per_s": (steps - 1) / (at[-1] - at[0]),
        "commits": len(commits),
        "miscounted": miscounted(commits, steps),
        "losses": losses(folder, commits),
    }


def miscounted(commits: Sequence[dict[str, Any]], steps: int) -> int:
    """Return the number of commits in which a micro-batch is missing or counted twice, and of
    missing commits."""
    every, there = list(range(MICRO_BATCHES)), set()
    bad = 0
    for row in commits:
        there.add((row["stage"], row["round"]))
        bad += sorted(b for each in row["contributors"] for b in each["micro_batches"]) != every
    return bad + len(STAGES) * steps - len(there)


def losses(folder: Path, commits: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Return the mean loss of each step: that of each member of the last stage, by its
    micro-batches. Steps are left out if a member was killed before it wrote its loss."""
    logged: dict[tuple[int, int], float] = {}
    for peer in range(PEERS):
        for row in read_lines(folder / f"peer-{peer}" / "metrics.jsonl"):
            if "loss" in row and "step" in row:
                logged[peer, int(row["step"])] = row["loss"]
    parts: dict[int, list[tuple[float | None, int]]] = defaultdict(list)
    for row in commits:
        if row["stage"] == len(STAGES) - 1:
            parts[row["round"]] = [
                (logged.get((each["peer"], row["round"])), len(each["micro_batches"]))
                for each in row["contributors"]
            ]
    return {
        step: sum(loss * count for loss, count in each if loss is not None) / MICRO_BATCHES
        for step, each in sorted(parts.items())
        if all(loss is not None for loss, _ in each)
    }


def alone(into: Path, steps: int) -> dict[int, float]:
    """Return the losses of one process without gossip."""
    out = into / "alone.json"
    words = ["--steps", str(steps), "--rows", str(MICRO_BATCHES * SAMPLES), "--alone", str(out)]
    subprocess.run([sys.executable, str(TRAIN), "char", *words], env=environment(), check=True)
    return dict(enumerate(json.loads(out.read_text())))


def wrong(numbers: dict[str, Any]) -> list[str]:
    found = [
        f"{name}: {numbers[name]['miscounted']} commits without each micro-batch once"
        for name in ("free", "killed")
        if numbers[name]["miscounted"]
    ]
    if numbers["killed"]["finished"] != PEERS:
        found.append("not every peer came to the end")
    if "alone" in numbers:
        for name in ("free", "killed"):
            numbers[name]["difference"] = difference(numbers[name]["losses"], numbers["alone"])
            numbers[name]["loss_off"] = loss_off(numbers[name]["losses"], numbers["alone"])
        if numbers["free"]["difference"] > DIFFERENCE_MAX:
            found.append(f"losses differ by {numbers['free']['difference']:.1e}")
        if numbers["killed"]["loss_off"] > LOSS_OFF_MAX:
            found.append(f"the loss with kills is off by {numbers['killed']['loss_off']:.1%}")
    elif numbers["goodput"] < GOODPUT_LEAST:
        found.append(f"goodput is {numbers['goodput']:.2f}")
    return found


def difference(ours: dict[int, float], theirs: dict[int, float]) -> float:
    return max(abs(loss - theirs[step]) for step, loss in ours.items())


def loss_off(ours: dict[int, float], theirs: dict[int, float]) -> float:
    last = sorted(ours)[-LAST:]
    one, other = (statistics.fmean(each[step] for step in last) for each in (ours, theirs))
    return abs(one / other - 1)


def page(kind: str, numbers: dict[str, Any]) -> list[str]:
    lines = []
    for name in ("free", "killed"):
        each = numbers[name]
        line = (
            f"{kind}, {name}: {each['kills']} kills, {each['steps_per_s']:.3g} steps/s, "
            f"{each['commits']} commits, {each['miscounted']} of them miscounted"
        )
        if "difference" in each:
            line += (
                f"; {len(each['losses'])} losses differ from one process's by at most "
                f"{each['difference']:.1e}, at the end by {each['loss_off']:.2%}"
            )
        lines.append(line)
    lines.append(f"{kind}: goodput {numbers['goodput']:.2f}")
    return [*lines, *(f"! {line}" for line in numbers["wrong"])]


if __name__ == "__main__":
    sys.exit(main())
