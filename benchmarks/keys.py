"""What keys cost a training: steps per second of ``gossip run`` with them over without, in turns.

    python benchmarks/keys.py --repetitions 5

What they cost a link, ``gossip bench links`` measures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whole_runs import HERE, TRAIN, Failed, ask_to_end, environment, last_words, run_all

# on a busy machine the others may have their last round before peer 0,
# which then has nothing to tell
TRIES = 3


def ratio(rows: Sequence[Mapping[str, Any]], over: str, under: str) -> float:
    ratios: list[float] = [row[over] / row[under] for row in rows]
    return statistics.median(ratios)


def steps_per_s(options: argparse.Namespace, keys: str) -> float:
    """Of one run, as peer 0 tells. Raises: Failed."""
    log = ""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="gossip-bench-") as folder:
            result = Path(folder, "result.json")
            command = [
                sys.executable,
                "-m",
                "gossip.launch.cli",
                "run",
                "-n",
                str(options.peers),
                keys,
            ]
            command += ["--start-timeout", "250"]
            command += [
                "--aggregator",
                "mean",
                "--run-dir",
                str(Path(folder, "run")),
                str(TRAIN),
            ]
            command += ["--steps", str(options.steps), "--result", str(result)]
            run_all(
                [(command, environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path])))],
                Path(folder, "log"),
            )
            if result.exists():
                return float(json.loads(result.read_text())["steps_per_s"])
            log = last_words(Path(folder, "log"))
    raise Failed(f"peer 0 did not come to its end\n{log}")


def training(options: argparse.Namespace) -> list[dict[str, Any]]:
    sides = {"without": "--no-keys", "with": "--keys"}
    rows = []
    for number in range(options.repetitions + 1):
        row = {
            side: steps_per_s(options, sides[side])
            for side in (sides if number % 2 == 0 else reversed(sides))
        }
        if number:
            rows.append(row)
            print(
                f"  turn {number}: {row['without']:.0f} without, {row['with']:.0f} with keys",
                flush=True,
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=5, help="measured pairs of runs")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, ask_to_end)
    print(
        f"steps per second of gossip run, {options.peers} peers, rolling, mean, 17,226 parameters, "
        f"{len(os.sched_getaffinity(0))} cores"
    )
    rows = training(options)
    for side in ("without", "with"):
        print(f"  {side:8} keys {statistics.median(row[side] for row in rows):8.0f} steps/s")
    print(f"  with keys over without: {ratio(rows, 'with', 'without'):.2f}")
    if options.json:
        options.json.write_text(json.dumps({"training": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
