"""Cost of saving: steps per second with a checkpoint every 50 steps over without, in one run.

    python benchmarks/saving.py                                    # digits, and 25 million numbers
    python benchmarks/saving.py --model large --pairs 12 --json out.json

A run saves every 100 steps. The 50 steps that begin with a save carry all of its cost, and are
compared with the 50 before: other work on the machine affects both. Printed are the mean of these
ratios, less one, and its 95 % interval (Student's t). If a save takes longer than 50 steps, the
next one waits, which the script reports: the comparison is then invalid, and it fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

TRAIN = """
import json, sys, time
import gossip
peer = gossip.init()
import torch
from torch import nn
torch.set_num_threads(1)
model_name, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if model_name == "large":
    model = nn.Sequential(*[nn.Linear(2236, 2236) for _ in range(5)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y, batch = torch.randn(64, 2236), torch.randn(64, 2236), 4
else:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
                          nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y, batch = torch.randn(4096, 64), torch.randn(4096, 10), 32
model, optimizer = peer.prepare(model, optimizer)
times = []
for step in peer.steps(steps, save="ckpt", every=every, keep=2):
    times.append(time.perf_counter())
    at = torch.randint(len(x), (batch,))
    loss = (model(x[at]) - y[at]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with open(f"times-{peer.id}.json", "w") as file:
    json.dump(times, file)
"""
BLOCK = 50
T_975 = {3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 11: 2.20, 15: 2.13, 19: 2.09, 29: 2.05}
"""Student's t, by degrees of freedom: that of the next smaller one is used."""


class Failed(Exception):
    """A run without results that can be compared."""


def main() -> int:
    arguments = parsed()
    results = {name: cost_of(name, arguments) for name in arguments.model}
    for name, found in results.items():
        low, high = found["interval"]
        print(
            f"{name}: {found['cost']:+.2%} of a step ({low:+.2%} to {high:+.2%}, "
            f"{len(found['ratios'])} pairs of {BLOCK} steps, {found['step_ms']:.1f} ms a step, "
            f"{found['checkpoint_mb']:.1f} MB a checkpoint)"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=("digits", "large"), default=["digits"])
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    return parser.parse_args()


def cost_of(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the cost of saving. Raises: Failed: The run failed, or a save took longer than a
    block."""
    steps = 2 * BLOCK * (arguments.pairs + 1) + BLOCK
    with tempfile.TemporaryDirectory(prefix="gossip-saving-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        command = [sys.executable, "-m", "gossip.launch.cli", "run", "-n", str(arguments.peers)]
        command += ["--aggregator", "mean", "train.py", model, str(steps), str(2 * BLOCK)]
        run = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        said = run.stdout + run.stderr
        if run.returncode or "waited" in said:
            raise Failed(said[-2000:])
        times = json.loads((folder / "times-0.json").read_text())
        newest = max((folder / "ckpt").glob("step-*"))
        nbytes = sum([path.stat().st_size for path in newest.iterdir()])
    return {**compared(times), "checkpoint_mb": nbytes / 1e6}


def compared(times: list[float]) -> dict[str, Any]:
    """Compare the blocks that begin with a save with those before them. The save of step s is made
    right before step s begins. The first save, which makes the buffers, is left out."""
    edges = range(4 * BLOCK - 1 - BLOCK, len(times), BLOCK)
    lengths = [times[stop] - times[start] for start, stop in pairwise(edges)]
    pairs = list(zip(lengths[0::2], lengths[1::2], strict=False))
    ratios = [with_save / without - 1.0 for without, with_save in pairs]
    mean = statistics.fmean(ratios)
    half = statistics.stdev(ratios) / len(ratios) ** 0.5 * _t(len(ratios) - 1)
    return {
        "cost": mean,
        "interval": [mean - half, mean + half],
        "ratios": ratios,
        "step_ms": 1000 * statistics.median(without for without, _ in pairs) / BLOCK,
    }


def _t(freedom: int) -> float:
    return T_975[max(known for known in T_975 if known <= freedom)]


if __name__ == "__main__":
    sys.exit(main())
