"""Counts failures in runs without a fault, by number of peers, size of the model, links and other
load. It also measures the memory of a peer.

    python benchmarks/fault_free.py --peers 4 --numbers 25000000 --rounds 15
    python benchmarks/fault_free.py --peers 2 4 8 --numbers 100000 1000000 --busy 0 4 --rounds 200
    sudo python benchmarks/fault_free.py --peers 2 4 --numbers 25000000 --rounds 20 \\
        --hosts 2 --mbit 100 1000 0

Each combination is a run. The table counts commits without all contributors, attempts above 0, late
updates, suspicions, restored states and branches: all should be 0. Two hosts are network namespaces
of this machine (root, and ip and tc of iproute2) with links of ``--mbit`` Mbit/s (0: no limit).
``--busy`` processes compute at the same time. The model is a single vector without computation: the
benchmark covers the transfer, copies, hashes and sums of updates and results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))  # for the hosts in network namespaces

from hosts import MOVE_IN, Hosts, hosts, why_no_hosts  # noqa: E402

from gossip.run import read_lines  # noqa: E402

TRAIN = (
    MOVE_IN
    + """
import sys
elements, rounds = map(int, sys.argv[1:3])
if places := sys.argv[3:]:
    peer, peers = int(os.environ["GOSSIP_PEER"]), int(os.environ["FAULT_FREE_PEERS"])
    host = peer * (len(places) // 2) // peers
    move_in(*places[2 * host : 2 * host + 2])
import gossip
peer = gossip.init()
import torch
torch.set_num_threads(1)
model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(elements))])
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
while peer.round < rounds:
    optimizer.zero_grad(set_to_none=False)
    model[0].sum().backward()
    optimizer.step()
peer.close()
"""
)
BUSY = "while True: sum(range(10000))"
LOOK_S = 0.5
WRITTEN = ("events.jsonl", "commits.jsonl")
COUNTED = ("late", "attempt", "suspect", "dead", "suspected", "restored", "fork", "notice")


@contextmanager
def others(count: int) -> Iterator[None]:
    """Run ``count`` processes that compute until the ``with`` block ends."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def memory_of_children() -> Iterator[list[int]]:
    """Measure the memory of all child processes in bytes, every half second until the ``with``
    block ends. Shared memory counts once."""
    seen, over = [0], threading.Event()
    watcher = threading.Thread(target=watch, args=(seen, over), daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def watch(seen: list[int], over: threading.Event) -> None:
    me = psutil.Process()
    while not over.wait(LOOK_S):
        total = 0
        for process in me.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # the process ended after it was listed
                total += process.memory_full_info().pss
        seen.append(total)


def cell(
    peers: int, numbers: int, mbit: int | None, busy: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Play one run. ``mbit`` is None for a single host."""
    with (
        tempfile.TemporaryDirectory() as name,
        hosts(2) if mbit is not None else nullcontext() as on,
        others(busy),
    ):
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        places: list[str] = []
        if isinstance(on, Hosts) and mbit is not None:
            places = [word for host in zip(on.names, on.addresses, strict=True) for word in host]
            if mbit:
                on.narrow(0, mbit)
                on.narrow(1, mbit)
        command = [sys.executable, "-m", "gossip.launch.cli", "run", "-n", str(peers), "--quiet"]
        command += ["--aggregator", options.aggregator, "--run-dir", "out", *options.word]
        command += ["train.py", str(numbers), str(options.rounds), *places]
        settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "FAULT_FREE_PEERS": str(peers)}
        if places:
            settings |= {"GOSSIP_WARM": "false"}
            if "--keys" not in options.word:
                settings |= {"GOSSIP_INSECURE": "true"}
        environment = {**os.environ, **settings}
        with memory_of_children() as most:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=3600,
                check=False,
            )
        if done.returncode:
            print(done.stderr, end="", file=sys.stderr, flush=True)
        if missing := [name for name in WRITTEN if not (folder / "out" / name).is_file()]:
            said = "its output is above" if done.stderr else "it has printed nothing"
            raise SystemExit(
                f"a run of {peers} peers and {numbers} parameters has no "
                f"{' and no '.join(missing)}: its launcher has ended with exit code "
                f"{done.returncode}, {said}"
            )
        found = judge(folder / "out", peers, options.rounds)
        if options.keep:
            subprocess.run(["cp", "-r", str(folder / "out"), str(options.keep)], check=True)
    where = (
        "one host" if mbit is None else f"two hosts, {f'{mbit} Mbit/s' if mbit else 'unlimited'}"
    )
    return {
        "peers": peers,
        "numbers": numbers,
        "where": where,
        "busy": busy,
        "exit": done.returncode,
        **found,
        "gb_a_peer": round(max(most) / peers / 1e9, 2),
    }


def judge(folder: Path, peers: int, rounds: int) -> dict[str, Any]:
    """Return the counts and times that a run has logged. Events from the round after the last do
    not count: the first peer that finishes passes that round to another server, which is no
    fault."""
    events = [row for row in read_lines(folder / "events.jsonl") if row.get("round", 0) < rounds]
    commits = list(read_lines(folder / "commits.jsonl"))
    counts = Counter(row["event"] for row in events)
    ends = [row["t"] for row in commits if row["shard"] == 0]
    times = sorted(after - before for before, after in itertools.pairwise(ends))
    return {
        "rounds": len({row["round"] for row in commits}),
        "commits": len(commits),
        "lack": sum(len(row["contributors"]) < peers for row in commits),
        **{event: counts[event] for event in COUNTED},
        "round_s": round(statistics.median(times), 3) if times else None,
        "longest_s": round(times[-1], 3) if times else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, nargs="+", default=[4])
    parser.add_argument(
        "--numbers", type=int, nargs="+", default=[25_000_000], help="float32 numbers of the model"
    )
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1)
    parser.add_argument(
        "--mbit",
        type=int,
        nargs="+",
        default=[0],
        help="rate of each host's cable; 0 means no limit",
    )
    parser.add_argument(
        "--busy", type=int, nargs="+", default=[0], help="processes that compute beside the peers"
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--aggregator", default="mean")
    parser.add_argument(
        "--word", action="append", default=[], help="an additional argument of gossip run"
    )
    parser.add_argument("--keep", type=Path, help="copy the folder of the last run to this path")
    parser.add_argument("--json", type=Path, help="file to which a line is added for each run")
    options = parser.parse_args()
    if options.hosts == 2 and (why := why_no_hosts()):
        raise SystemExit(why)
    cables = options.mbit if options.hosts == 2 else [None]
    for peers, numbers, mbit, busy in itertools.product(
        options.peers, options.numbers, cables, options.busy
    ):
        found = cell(peers, numbers, mbit, busy, options)
        print(" ".join(f"{name}={value}" for name, value in found.items()), flush=True)
        if options.json:
            with options.json.open("a") as out:
                out.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
