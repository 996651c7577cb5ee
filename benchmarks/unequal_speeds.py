"""Cost of a peer that is slower than the others, with local steps: real processes, digits.

    python benchmarks/unequal_speeds.py --json results.json

Runs one peer alone, all peers at one speed, and all with the last one `--factor` times slower, with
`--slices speed` (a slow peer takes fewer steps) and `equal` (it takes all, and the others wait or
go on without it). The speed is samples used a second over the second half of the rounds; the ideal
is the sum of what each peer would do alone. Losses are means over the same range of samples used:
that of one round goes up and down by a third.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from whole_runs import GOSSIP, HERE, conclude, environment, parser, summary_of

POINTS = 50
SCRIPT = HERE / "unequal_train.py"
TIMEOUT_S = 600.0


class Run(NamedTuple):
    """One run: samples used a second, who took part, and the loss by samples used."""

    speed: float
    participation: float
    samples: list[int]  # used up to each round
    losses: list[float]  # behind each round
    of_slow: float  # part of the samples that were the last peer's
    trust: float  # in the last peer, at the end
    identical: bool


def play(peers: int, options: Any, faults: list[str], slices: str) -> Run:
    """Raises: RuntimeError: The run did not end well."""
    with tempfile.TemporaryDirectory(prefix="gossip-benchmark-") as scratch:
        result, run = Path(scratch) / "result.json", Path(scratch) / "run"
        command = [
            *[*GOSSIP, "run", "-n", str(peers), "--aggregator", options.aggregator, "--seed"],
            *[
                str(options.seed),
                "--local-steps",
                str(options.local_steps),
                "--outer",
                options.outer,
            ],
            *["--slices", slices, "--run-dir", str(run)],
            *[word for fault in faults for word in ("--fault", fault)],
            *[str(SCRIPT), "--rounds", str(options.rounds), "--result", str(result)],
            *["--local-steps", str(options.local_steps), "--pause", str(options.pause)],
        ]
        done = subprocess.run(
            command,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
        identical = summary_of(run)["replicas_identical"]
        lines = map(json.loads, (run / "commits.jsonl").read_text().splitlines())
        rows = list({row["round"]: row for row in lines if "contributors" in row}.values())
        losses = dict(json.loads(result.read_text()))
    return measured(rows[: options.rounds], losses, peers, identical)


def measured(
    rows: list[dict[str, Any]], losses: dict[int, float], peers: int, identical: bool
) -> Run:
    """Return the figures of a run from its commits, in order, and the loss after each round."""
    used, total, of_last = [], 0, 0
    for row in rows:
        given = {each["peer"]: each["samples"] for each in row["contributors"]}
        total += sum(given.values())
        of_last += given.get(peers - 1, 0)
        used.append(total)
    half = len(rows) // 2
    lasted_s = rows[-1]["t"] - rows[half]["t"]
    known = [at for at in range(len(rows)) if at + 1 in losses]
    return Run(
        speed=(used[-1] - used[half]) / lasted_s,
        participation=statistics.mean(len(row["contributors"]) for row in rows[half:]) / peers,
        samples=[used[at] for at in known],
        losses=[losses[at + 1] for at in known],
        of_slow=of_last / total,
        trust=rows[-1]["trust"].get(str(peers - 1), 1.0),
        identical=identical,
    )


def loss_at(run: Run, samples: int) -> float:
    """Between the two rounds around so many samples."""
    for at in range(1, len(run.samples)):
        before, after = run.samples[at - 1], run.samples[at]
        if before <= samples <= after:
            part = (samples - before) / max(1, after - before)
            return run.losses[at - 1] + part * (run.losses[at] - run.losses[at - 1])
    raise ValueError(f"the run has no loss at {samples} samples")


def mean_loss(run: Run, common: int) -> float:
    """Return the mean loss from half to all of ``common`` samples."""
    first = common / 2
    at = [round(first + (common - first) * point / (POINTS - 1)) for point in range(POINTS)]
    return statistics.mean(loss_at(run, samples) for samples in at)


def main() -> int:
    options_of = parser(__doc__, peers=4, seed="1")
    options_of.add_argument("--local-steps", type=int, default=30)
    options_of.add_argument("--outer", default="mean")
    options_of.add_argument("--aggregator", default="mean")
    options_of.add_argument("--rounds", type=int, default=40)
    options_of.add_argument("--factor", type=float, default=4.0)
    options_of.add_argument("--pause", type=float, default=0.02)
    options = options_of.parse_args()
    peers, slow = options.peers, [f"slow:{options.peers - 1}*{options.factor:g}"]
    alone = play(1, options, [], "speed")
    ideal = alone.speed * (peers - 1 + 1 / options.factor)
    runs = {
        "all alike": play(peers, options, [], "speed"),
        "one slow, speed": play(peers, options, slow, "speed"),
        "one slow, equal": play(peers, options, slow, "equal"),
    }
    common = int(0.95 * min(run.samples[-1] for run in runs.values()))
    at = {name: mean_loss(run, common) for name, run in runs.items()}
    print(f"alone: {alone.speed:.0f} samples/s; the sum of speeds with one slow: {ideal:.0f}")
    print(
        "| run | samples/s | of the sum | participation | part of the slow | loss | over | trust |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, run in runs.items():
        sum_of = alone.speed * peers if name == "all alike" else ideal
        over = at[name] / at["all alike"] - 1
        print(
            f"| {name} | {run.speed:.0f} | {run.speed / sum_of:.3f} | {run.participation:.3f} | "
            f"{run.of_slow:.3f} | {at[name]:.4f} | {over:+.1%} | {run.trust:.2f} |"
        )
    numbers = {
        "alone": alone.speed,
        "ideal": ideal,
        "samples": common,
        "loss": at,
        "runs": {name: run._asdict() for name, run in runs.items()},
    }
    return conclude(numbers, options.json, not all(run.identical for run in runs.values()))


if __name__ == "__main__":
    sys.exit(main())
