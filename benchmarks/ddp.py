"""Steps per second of gossip, rolling with the mean, against PyTorch DDP over gloo: same model, batch and data, one machine.

    python benchmarks/ddp.py                                    # 4 peers, 7 interleaved repetitions
    python benchmarks/ddp.py --peers 2 --steps 500 --json out.json

The sides take turns (A B C A B C ...), so that whatever else the machine does meets all of them. The first turn of each is
thrown away. Printed are medians, their spread, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "digits_train.py"
SIDES = ("ddp", "gossip", "none")
NAMES = {"ddp": "DDP over gloo", "gossip": "gossip, rolling, mean", "none": "no exchange (the limit)"}
RUN_TIMEOUT_S = 300.0


class Failed(Exception):
    """A run did not end well; the message holds its last words."""


def environment(**extra: str) -> dict[str, str]:
    """One thread a process, loopback only, and nothing of an outer gossip run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIP_")}
    return {**kept, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo", **extra}


def last_words(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-15:])


def run_all(commands: Sequence[tuple[list[str], dict[str, str]]], log: Path) -> None:
    """Runs the commands side by side; ends them all when one fails or the time is up. Raises ``Failed``."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    with log.open("w+") as out:
        running = [
            subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out) for command, env in commands
        ]
        try:
            while any(process.poll() is None for process in running):
                if time.monotonic() > deadline:
                    raise Failed(f"not done in {RUN_TIMEOUT_S:.0f} s\n{last_words(log)}")
                if any(process.poll() for process in running):
                    break  # one failed: the others would wait for it
                time.sleep(0.02)
            if codes := [process.poll() for process in running if process.poll()]:
                raise Failed(f"exit code {codes[0]}\n{last_words(log)}")
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait()


def measure(side: str, peers: int, steps: int, batch: int) -> dict[str, Any]:
    """One run of one side. Returns what its rank 0 measured: steps_per_s, accuracy."""
    with tempfile.TemporaryDirectory(prefix="gossip-bench-") as folder:
        result = Path(folder, "result.json")
        own = ["--exchange", side, "--steps", str(steps), "--batch", str(batch), "--result", str(result)]
        if side == "gossip":
            gossip = str(Path(sys.executable).with_name("gossip"))
            rules = ["--topology", "rolling", "--aggregator", "mean", "--run-dir", str(Path(folder, "run"))]
            commands = [([gossip, "run", "-n", str(peers), *rules, str(TRAIN), *own], environment())]
        else:
            own += ["--rendezvous", str(Path(folder, "rendezvous"))]
            ranks = [environment(RANK=str(rank), WORLD_SIZE=str(peers)) for rank in range(peers)]
            commands = [([sys.executable, str(TRAIN), *own], env) for env in ranks]
        log = Path(folder, "log")
        run_all(commands, log)
        if not result.exists():
            raise Failed(f"rank 0 did not come to its end\n{last_words(log)}")
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000, help="steps a run; the middle 70 %% are measured")
    parser.add_argument("--batch", type=int, default=32, help="samples a process and step")
    parser.add_argument("--repetitions", type=int, default=7, help="measured turns of each side, after one that is not")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args()
    if options.peers < 1 or options.steps < 20 or options.repetitions < 1:
        parser.error("--peers and --repetitions must be at least 1, --steps at least 20")
    return options


def main() -> int:
    options = parse()
    rows: list[dict[str, Any]] = []
    for turn in range(options.repetitions + 1):
        for side in options.sides:
            try:
                row = measure(side, options.peers, options.steps, options.batch)
            except Failed as failure:
                print(f"{NAMES[side]} failed: {failure}", file=sys.stderr)
                return 1
            load = os.getloadavg()[0]
            print(
                f"turn {turn} {NAMES[side]:<24} {row['steps_per_s']:8.0f} steps/s  accuracy {row['accuracy']:.3f}"
                + ("  (warm-up, not counted)" if turn == 0 else ""),
                flush=True,
            )
            if turn:
                rows.append({"side": side, "turn": turn, "load_1m": load, **row})

    cores, turns = os.cpu_count(), options.repetitions
    print(f"\n{options.peers} peers on {cores} cores, batch {options.batch} each, {turns} repetitions in turns")
    median = {}
    for side in options.sides:
        rates = sorted(row["steps_per_s"] for row in rows if row["side"] == side)
        median[side] = statistics.median(rates)
        print(f"{NAMES[side]:<24} {rates[0]:7.0f} / {median[side]:7.0f} / {rates[-1]:7.0f} steps/s (min / median / max)")
    ratios = {f"gossip_to_{side}": median["gossip"] / median[side] for side in median if side != "gossip" and "gossip" in median}
    for name, ratio in ratios.items():
        print(f"ratio of the medians, {name.replace('_', ' ').replace('none', 'no exchange')}: {ratio:.2f}")
    if options.json:
        import torch

        machine = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        settings = {"peers": options.peers, "steps": options.steps, "batch": options.batch, "repetitions": options.repetitions}
        options.json.write_text(
            json.dumps({"machine": machine, "settings": settings, "median": median, "ratios": ratios, "rows": rows}, indent=2)
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
