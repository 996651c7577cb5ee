"""Five unequal peers, each with less memory than the model needs: it is profiled, planned, trained,
saved, loses a peer, resumed and exported, and no process goes over its limit.

    python benchmarks/pipeline_memory.py            # about four minutes on two cores
    python benchmarks/pipeline_memory.py --json out.json

The model is ``wide`` of ``pipeline_train.py``: 101 million parameters, 16 bytes each in training
with Adam (number, gradient, two moments). A limit holds for each process of a peer, its trainer and
its node. It is what the kernel says was its largest resident memory (VmHWM: shared memory and
libraries are in it), read every 20 ms; who goes over it is killed at once. So it needs no cgroup,
which only root may make. Exit 1 when anything of this went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whole_runs import GOSSIP, HERE, environment

TRAIN = HERE / "pipeline_train.py"
LIMITS_MIB = {"lab1": 1500, "lab2": 1450, "lab3": 1300, "lab4": 1150, "lab5": 950}
PROCESS_MIB = 250  # Python and torch, before there is a model
COPIES = 11.5  # numbers a parameter: 4 of the training, 3 of a checkpoint, the rest of rounds
PARAMETERS = 24 * (2048 * 2049 + 2 * 2048)
BATCH, SAMPLES = 16, 2
LOOK_S = 0.02


@dataclass
class Watched:
    """Memory of one run's processes: their peaks, and reports of those over the limit."""

    peaks_mib: dict[tuple[int, str], float] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--into", type=Path, help="where runs go, and stay")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        into = options.into or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        into.mkdir(parents=True, exist_ok=True)
        numbers = measure(into, options.steps)
    print(page(numbers))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")
    return 1 if numbers["wrong"] else 0


def measure(into: Path, steps: int) -> dict[str, Any]:
    python = [sys.executable, str(TRAIN), "wide", "--rows", str(BATCH)]
    alone = [*python, "--steps", str(steps), "--alone", "losses.json", "--out", "alone.safetensors"]
    numbers: dict[str, Any] = {"whole_mib": peak_of(into, alone)}
    numbers["profile_mib"] = {name: profile(into, name) for name in LIMITS_MIB}
    plan = json.loads(
        output(into, [*GOSSIP, "plan", *(f"{name}.toml" for name in LIMITS_MIB), "--mbit", "1000"])
    )
    stages = plan["pipelines"][0]["stages"]
    numbers["stages"] = stages
    names = [name for stage in stages for name in stage["peers"]]
    lost = names.index("lab3")
    script = [str(TRAIN), "wide", "--rows", str(BATCH), "--save", "saved", "--every", "3"]
    run = [*GOSSIP, "run", "--plan", "plan.toml", "--json", "--round-timeout", "60"]
    crash = ["--fault", f"crash:{lost}@{steps // 2 + 2}"]
    first = [*run, "--run-dir", "first", *crash, *script, "--steps", str(steps)]
    again = [*run, "--run-dir", "again", "--resume", "auto", *script, "--steps", str(steps)]
    numbers["first"], before = train(into, first, names)
    numbers["again"], after = train(into, again, names)
    numbers["peaks_mib"] = peaks(names, before, after)
    numbers["export_mib"] = peak_of(
        into, [*GOSSIP, "checkpoints", "export", "saved", "model.safetensors"]
    )
    numbers["difference"] = difference(into)
    numbers["wrong"] = wrong(numbers, before.over + after.over, steps)
    return numbers


def profile(into: Path, name: str) -> float:
    memory = ["--memory", f"{LIMITS_MIB[name] - PROCESS_MIB}MiB", "--batches", "1,4"]
    words = [f"{TRAIN}:wide", "--name", name, "--repeats", "3", *memory]
    return peak_of(into, [*GOSSIP, "plan", "profile", *words])


def output(into: Path, command: Sequence[str]) -> str:
    words = [*command, "--batch", str(BATCH), "--samples", str(SAMPLES), "--copies", str(COPIES)]
    done = subprocess.run(
        [*words, "--replace", "--json"], cwd=into, env=environment(), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def peak_of(into: Path, command: Sequence[str]) -> float:
    """MiB: the largest resident memory of a process that ends well."""
    process = subprocess.Popen(command, cwd=into, env=environment(), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_maxrss / 1024


# --- runs -----------------------------------------------------------------------------------------


def train(into: Path, command: Sequence[str], names: Sequence[str]) -> tuple[Any, Watched]:
    """The run's summary, and what its processes took. ``names``: of peers, in order."""
    run, seen = into / command[command.index("--run-dir") + 1], Watched()
    with (into / f"{run.name}.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=into, env=environment(), stdout=subprocess.DEVNULL, stderr=log
        )
        while process.poll() is None:
            sample_memory(run, names, seen)
            time.sleep(LOOK_S)
    summary = json.loads((run / "summary.json").read_text())
    return {"status": summary["status"], "rounds": summary["rounds"]}, seen


def sample_memory(run: Path, names: Sequence[str], seen: Watched) -> None:
    """At the processes of all peers, whose nodes have written down who they are."""
    for peer, name in enumerate(names):
        try:
            told = json.loads((run / f"peer-{peer}" / "peer.json").read_text())
        except (OSError, ValueError):
            continue  # it has not begun yet, or is writing that file
        for kind, pid in (("trainer", told["trainer_pid"]), ("node", told["pid"])):
            peak = resident_mib(pid)
            key = peer, kind
            seen.peaks_mib[key] = max(seen.peaks_mib.get(key, 0.0), peak)
            if peak > LIMITS_MIB[name]:
                seen.over.append(f"{name}'s {kind} had {peak:.0f} MiB")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def resident_mib(pid: int) -> float:
    """The most that it ever had; 0.0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def peaks(names: Sequence[str], *runs: Watched) -> dict[str, dict[str, float]]:
    return {
        name: {
            kind: max(seen.peaks_mib.get((peer, kind), 0.0) for seen in runs)
            for kind in ("trainer", "node")
        }
        for peer, name in enumerate(names)
    }


def difference(into: Path) -> float:
    """The largest between the exported model and that of one process, by its largest number."""
    from safetensors import safe_open

    worst = 0.0
    with (
        safe_open(into / "model.safetensors", "pt") as ours,
        safe_open(into / "alone.safetensors", "pt") as theirs,
    ):
        if set(ours.keys()) != set(theirs.keys()):
            return float("inf")
        for name in set(ours.keys()):
            one, other = ours.get_tensor(name), theirs.get_tensor(name)
            worst = max(worst, float((one - other).abs().max()))
    return worst


def wrong(numbers: dict[str, Any], over: Sequence[str], steps: int) -> list[str]:
    needed_mib = 16 * PARAMETERS / 2**20
    found = [*over]
    if max(LIMITS_MIB.values()) >= needed_mib:
        found.append("a limit is not below what the model needs")
    for name, peak in numbers["profile_mib"].items():
        if peak > LIMITS_MIB[name]:
            found.append(f"gossip plan profile took {peak:.0f} MiB on {name}")
    if numbers["export_mib"] > min(LIMITS_MIB.values()):
        found.append("the export took more than the smallest limit")
    if numbers["first"]["status"] == "finished" and len(numbers["stages"]) == len(LIMITS_MIB):
        found.append("a stage was lost, and the run came to its end")
    if numbers["again"]["status"] != "finished":
        found.append("the run that was resumed did not come to its end")
    if not numbers["difference"] < 1e-3:
        found.append("the exported model is not that of one process")
    return found


def page(numbers: dict[str, Any]) -> str:
    needed_mib = 16 * PARAMETERS / 2**20
    lines = [
        f"{PARAMETERS / 1e6:.0f} million parameters, {needed_mib:.0f} MiB with Adam; one process "
        f"that trains them without gossip: {numbers['whole_mib']:.0f} MiB",
        "",
        "| peer | limit, MiB | stage: layers | planned | trainer | node | profile |",
        "|---|---|---|---|---|---|---|",
    ]
    for at, stage in enumerate(numbers["stages"]):
        for name in stage["peers"]:
            peak = numbers["peaks_mib"][name]
            planned = stage["memory_bytes"] / 2**20 + PROCESS_MIB
            lines.append(
                f"| {name} | {LIMITS_MIB[name]} | {at}: {stage['layers'][0]}-{stage['layers'][1]} "
                f"| {planned:.0f} | {peak['trainer']:.0f} | {peak['node']:.0f} "
                f"| {numbers['profile_mib'][name]:.0f} |"
            )
    lines += [
        "",
        f"lost a peer: {numbers['first']}; resumed: {numbers['again']}",
        f"export: {numbers['export_mib']:.0f} MiB; its model differs from that of one process by "
        f"at most {numbers['difference']:.1e}",
        *(f"! {line}" for line in numbers["wrong"]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
