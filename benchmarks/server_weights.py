"""Benefit of server weights: rounds a second with them over without, if one of several hosts has a
slow network.

    sudo python benchmarks/server_weights.py  # 4 hosts, one behind 100 Mbit/s, 3 turns
    sudo python benchmarks/server_weights.py --hosts 6 --mbit 50 --repetitions 5 --json weights.json

Hosts are network namespaces of this machine (root, and ip and tc of iproute2); tc narrows the cable
of the last one, both ways. Each has one peer of one run. The model is a single vector, of which
nothing is computed: what is measured is how long updates and results travel. The two settings take
turns; printed are the medians, and the median of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # hosts of namespaces are those of the tests

from hosts import MOVE_IN, Hosts, hosts, why_no_hosts  # noqa: E402

SETTLED = 5
"""Rounds that are not counted: the start."""
TRAIN = (
    MOVE_IN
    + """
import json, sys, time
elements, rounds, settled = map(int, sys.argv[1:4])
mine = int(os.environ["GOSSIP_PEER"])
move_in(*sys.argv[4 + 2 * mine : 6 + 2 * mine])
import gossip
peer = gossip.init()
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(elements, 1, bias=False)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
x, times = torch.ones(1, elements), []
while peer.round < rounds:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    times.append((peer.round, time.monotonic()))
peer.close()
counted = [(number, at) for number, at in times if number >= settled]
(first, began), (last, ended) = counted[0], counted[-1]
(peer.run_dir / f"speed-{mine}.json").write_text(json.dumps((last - first) / (ended - began)))
"""
)


def rounds_per_s(on: Hosts, options: argparse.Namespace, weights: str) -> float:
    """Return the rounds per second of one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        words = [
            "-n",
            str(options.hosts),
            "--aggregator",
            "mean",
            "--run-dir",
            "out",
            "--quiet",
            "--server-weights",
            weights,
        ]
        places = [word for host in zip(on.names, on.addresses, strict=True) for word in host]
        script = ["train.py", str(options.elements), str(options.rounds), str(SETTLED), *places]
        command = [sys.executable, "-m", "gossip.launch.cli", "run", *words, *script]
        settings = {
            "GOSSIP_INSECURE": "true",
            "GOSSIP_WARM": "false",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"a run failed: {done.stderr[-2000:]}{done.stdout[-2000:]}")
        found: float = json.loads((folder / "out" / "speed-0.json").read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument(
        "--mbit",
        type=int,
        default=100,
        help="of the slow one; the others have what the machine gives",
    )
    parser.add_argument("--weight", type=int, default=8, help="of the others")
    parser.add_argument(
        "--elements",
        type=int,
        default=1_000_000,
        help="float32 numbers of the model; beyond 2**20 in shards",
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if why := why_no_hosts():
        raise SystemExit(why)
    sides = {
        "without": "0:1",
        "with": ",".join(f"{peer}:{options.weight}" for peer in range(options.hosts - 1)),
    }
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    with hosts(options.hosts) as on:
        on.narrow(options.hosts - 1, options.mbit)
        for turn in range(options.repetitions):
            for side in sides if turn % 2 == 0 else reversed(sides):
                speeds[side].append(rounds_per_s(on, options, sides[side]))
                print(f"turn {turn}, {side} weights: {speeds[side][-1]:.3f} rounds/s", flush=True)
    ratios = [
        with_ / without for with_, without in zip(speeds["with"], speeds["without"], strict=True)
    ]
    for side, found in speeds.items():
        print(
            f"{side} weights: {statistics.median(found):.3f} rounds/s (of {min(found):.3f} to "
            f"{max(found):.3f})"
        )
    print(
        f"with over without: {statistics.median(ratios):.2f} (of {min(ratios):.2f} to "
        f"{max(ratios):.2f})"
    )
    if options.json:
        options.json.write_text(
            json.dumps(
                {"options": {**vars(options), "json": str(options.json)}, "rounds_per_s": speeds}
            )
        )


if __name__ == "__main__":
    main()
