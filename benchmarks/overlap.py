"""Gain and cost of computing beside a round: real processes, digits.

    python benchmarks/overlap.py --json overlap.json

Each row is a link and a number of local steps, with ``--overlap 0`` and ``1`` in turn, for each
seed. A step sleeps for ``--pause``, as one on an accelerator would leave the processor alone; the
row without a pause does not. A slow link is made by faults: ``delay`` (each message takes up to so
much longer) and ``trickle`` (so many bytes of payloads a second get through on each link). SGD with
momentum 0.9 and a learning rate of 0.05, or what the row says; 0.02 with local steps.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any, NamedTuple

from whole_runs import (
    GOSSIP,
    HERE,
    Failed,
    conclude,
    environment,
    parser,
    run_all,
    scratch,
    summary_of,
)

SCRIPT = HERE / "overlap_train.py"
ALWAYS = "@0s+3600s"


class Setting(NamedTuple):
    """A row. ``words``: of ``gossip run``."""

    name: str
    pause_s: float
    steps: int
    lr: float
    words: tuple[str, ...] = ()


def settings(pause_s: float, steps: int, peers: int) -> list[Setting]:
    """Return the settings of the table."""
    delay = "--fault", f"delay:all*20ms{ALWAYS}"
    everybody = ",".join(map(str, range(peers)))
    narrow = "--fault", f"trickle:{everybody}*2000000{ALWAYS}"
    local = "--local-steps", "10"
    return [
        Setting("one machine, no pause, lr 0.1", 0.0, 4 * steps, 0.1),
        Setting("one machine, no pause", 0.0, 4 * steps, 0.05),
        Setting("up to 20 ms a message", pause_s, steps, 0.05, delay),
        Setting("16 Mbit/s a link", pause_s, steps, 0.05, narrow),
        Setting("16 Mbit/s a link, 10 local steps", pause_s, 2 * steps, 0.02, (*narrow, *local)),
        Setting(
            "16 Mbit/s a link, 10 local steps in 2 fragments",
            pause_s,
            2 * steps,
            0.02,
            (*narrow, *local, "--fragments", "2"),
        ),
    ]


def play(setting: Setting, overlap: int, seed: int, peers: int) -> dict[str, Any]:
    """One run. Raises: Failed."""
    with scratch() as folder:
        result, run = folder / "result.json", folder / "run"
        command = [
            *[*GOSSIP, "run", "-n", str(peers), "--aggregator", "mean", "--seed", str(seed)],
            *["--overlap", str(overlap), "--run-dir", str(run), *setting.words, str(SCRIPT)],
            *["--steps", str(setting.steps), "--pause", str(setting.pause_s)],
            *["--lr", str(setting.lr), "--result", str(result)],
        ]
        run_all([(command, environment())], folder / "log")
        if not summary_of(run)["replicas_identical"]:
            raise Failed(f"{setting.name}, overlap {overlap}, seed {seed}: replicas differ")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def row_of(setting: Setting, options: Any) -> dict[str, Any]:
    """Both kinds of run in turn, for each seed."""
    seeds = range(options.seed, options.seed + options.seeds)
    runs = [[play(setting, kind, seed, options.peers) for kind in (0, 1)] for seed in seeds]
    without, beside = zip(*runs, strict=True)
    return {
        "setting": setting.name,
        "steps_per_s": [[run["steps_per_s"] for run in kind] for kind in (without, beside)],
        "accuracy": [[run["accuracy"] for run in kind] for kind in (without, beside)],
    }


def main() -> int:
    options_of = parser(__doc__, peers=4, seed="the first")
    options_of.add_argument("--seeds", type=int, default=3)
    options_of.add_argument("--rows", type=int, nargs="+", default=range(6), help="from 0")
    options_of.add_argument("--pause", type=float, default=0.03)
    options_of.add_argument("--steps", type=int, default=200)
    options = options_of.parse_args()
    print("| link | steps/s | with overlap | gain | accuracy | with overlap |")
    print("|---|---|---|---|---|---|")
    rows = []
    every = settings(options.pause, options.steps, options.peers)
    for setting in [every[at] for at in options.rows]:
        row = row_of(setting, options)
        rows.append(row)
        without, beside = map(statistics.median, row["steps_per_s"])
        accuracy = [
            f"{100 * statistics.mean(kind):.1f} (" + ", ".join(f"{100 * a:.1f}" for a in kind) + ")"
            for kind in row["accuracy"]
        ]
        gain = f"{beside / without:.2f}"
        print(
            f"| {setting.name} | {without:.1f} | {beside:.1f} | {gain} | {' | '.join(accuracy)} |",
            flush=True,
        )
    return conclude({"rows": rows}, options.json, False)


if __name__ == "__main__":
    sys.exit(main())
