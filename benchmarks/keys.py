"""Cost of keys: payloads over a link, and steps per second of ``gossip run``, with keys over
without, in turns.

    python benchmarks/keys.py --repetitions 5
    sudo python benchmarks/keys.py --hosts 2

Payloads are those of ``gossip bench links``, over TCP with keys and without. Two hosts are network
namespaces of this machine (root, and ip and tc of iproute2): the first half of the peers is on one,
the others are on the other.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path

from whole_runs import (
    GOSSIP,
    HERE,
    TRAIN,
    Failed,
    ask_to_end,
    environment,
    last_words,
    output_of,
    run_all,
    scratch,
)

from gossip_lab.bench.turns import in_order, ratios

sys.path.append(str(HERE.parent / "tests"))  # hosts of namespaces are those of the tests

from hosts import MOVE_IN, Hosts, hosts, why_no_hosts

SIDES = {"without": "--no-keys", "with": "--keys"}
NUMBERS = (262_144, 2_097_152)
"""Numbers in payloads of 1 and 8 MiB."""
ON_HOSTS = (
    MOVE_IN
    + """
import runpy, sys
places = os.environ["KEYS_PLACES"].split()
host = 2 * int(os.environ["GOSSIP_PEER"]) >= int(os.environ["KEYS_PEERS"])
move_in(*places[2 * host : 2 * host + 2])
sys.argv[0] = os.environ["KEYS_SCRIPT"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
)
# on a busy machine the others may have their last round before peer 0, which then has no result
TRIES = 3


def payloads(repetitions: int, on: Hosts | None) -> dict[str, list[dict[str, float]]]:
    """Return MiB per second with keys and without, of each turn. Raises: Failed."""
    words = [word for numbers in NUMBERS for word in ("--numbers", str(numbers))]
    inside: list[str] = []
    if on is not None:
        inside = on.inside(0)
        words += ["--host", on.addresses[0], "--other-host", on.addresses[1]]
        words += ["--via", shlex.join(on.inside(1))]
    words += ["--encoding", "float32", "--repetitions", str(repetitions), "--json"]
    found = {}
    env = environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path]))
    told = output_of([*inside, *GOSSIP, "bench", "links", *words], env)
    for table in json.loads(told)["tables"]:
        size = f"{4 * table['numbers'] // 2**20} MiB"
        turns = {row["way"]: row["turns"] for row in table["rows"]}
        spent = {row["way"]: row["cpu_ms_per_mib"] for row in table["rows"]}
        print(
            f"  {size}: processor time of both ends, ms a MiB: {spent['tcp']:.2f} without, "
            f"{spent['keys']:.2f} with keys"
        )
        found[size] = [
            {"without": without, "with": keyed}
            for without, keyed in zip(turns["tcp"], turns["keys"], strict=True)
        ]
    return found


def steps_per_s(options: argparse.Namespace, keys: str, on: Hosts | None) -> float:
    """Return the steps per second of one run, as peer 0 reports them. Raises: Failed."""
    log = ""
    for _ in range(TRIES):
        with scratch() as folder:
            script, settings = TRAIN, {}
            if on is not None:
                script = folder / "train.py"
                script.write_text(ON_HOSTS)
                places = zip(on.names, on.addresses, strict=True)
                settings = {
                    "KEYS_PLACES": " ".join(word for place in places for word in place),
                    "KEYS_PEERS": str(options.peers),
                    "KEYS_SCRIPT": str(TRAIN),
                    "GOSSIP_WARM": "false",
                    "GOSSIP_INSECURE": str(keys == "--no-keys").lower(),
                }
            result = folder / "result.json"
            command = [*GOSSIP, "run", "-n", str(options.peers), keys, "--start-timeout", "250"]
            command += ["--aggregator", "mean", "--run-dir", str(folder / "run"), str(script)]
            command += ["--steps", str(options.steps), "--result", str(result)]
            paths = os.pathsep.join([str(HERE.parent), *sys.path])
            run_all([(command, environment(PYTHONPATH=paths, **settings))], folder / "log")
            if result.exists():
                return float(json.loads(result.read_text())["steps_per_s"])
            log = last_words(folder / "log")
    raise Failed(f"peer 0 did not come to its end\n{log}")


def training(options: argparse.Namespace, on: Hosts | None) -> list[dict[str, float]]:
    rows = []
    for number in range(options.repetitions + 1):
        row = {
            side: steps_per_s(options, SIDES[side], on) for side in in_order(list(SIDES), number)
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
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=5, help="measured pairs of runs")
    parser.add_argument("--turns", type=int, default=15, help="measured pairs of payloads")
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args()
    if options.hosts == 2 and (why := why_no_hosts()):
        parser.error(why)
    signal.signal(signal.SIGTERM, ask_to_end)
    print(
        f"{options.hosts} host(s), {len(os.sched_getaffinity(0))} cores; steps are of gossip run, "
        f"{options.peers} peers, rolling, mean, 17,226 parameters"
    )
    found: dict[str, list[dict[str, float]]] = {}
    with hosts(2) if options.hosts == 2 else nullcontext() as on:
        if options.turns:
            found |= payloads(options.turns, on)
        if options.repetitions:
            found["training"] = training(options, on)
    for what, rows in found.items():
        unit = "steps/s" if what == "training" else "MiB/s"
        without, keyed = ([row[side] for row in rows] for side in SIDES)
        print(
            f"  {what:8} {statistics.median(without):6.0f} {unit} without keys, "
            f"{statistics.median(keyed):6.0f} with; with over without, median of {len(rows)} "
            f"turns: {ratios(keyed, without).median:.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
