"""Compares an exchange between two hosts, with keys, with one over gloo. The processes of ``gossip
bench exchange`` run in two network namespaces of this machine.

    sudo python benchmarks/two_hosts.py                       # no limit, and 1 Gbit/s
    sudo python benchmarks/two_hosts.py --mbit 100 --encodings int8 --numbers 1000000

Needs root, and ip and tc of iproute2. tc limits the rate at which each host sends and receives.
gloo has no keys. Exit 1 if a round lacked an update.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from whole_runs import HERE, conclude, last_words, run_gossip, scratch

from gossip_lab.bench.exchange import missing
from gossip_lab.bench.side_by_side import GLOO, GOSSIP as OURS, BenchTask
from gossip_lab.bench.turns import ratios

sys.path.append(str(HERE.parent / "tests"))  # for the hosts in network namespaces

from hosts import MOVE_IN, Hosts, hosts, why_no_hosts

PEERS = 2
NUMBER_S = 8e-9
"""Seconds for a byte at 1 Gbit/s. In a step each host sends and receives 8 bytes per element: an
update and a result of 4 bytes each."""
TURN_S, STEPS_MAX = 0.5, 50
ON_HOSTS = (
    MOVE_IN
    + """
import runpy
places = os.environ["TWO_HOSTS"].split()
peer = int(os.environ["GOSSIP_PEER"])
move_in(*places[2 * peer : 2 * peer + 2])
os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
runpy.run_module("gossip_lab.bench.side_by_side", run_name="__main__")
"""
)


def play(on: Hosts, numbers: int, encoding: str, repetitions: int) -> dict[str, Any]:
    """Return the seconds per step of each side in each turn, and the number of rounds that lack a
    peer's update. Raises: whole_runs.Failed."""
    with scratch() as folder:
        script, run = folder / "peer.py", folder / "run"
        script.write_text(ON_HOSTS)
        steps = max(1, min(STEPS_MAX, int(TURN_S / (8 * NUMBER_S * numbers))))
        task = BenchTask("vector", "cpu", numbers, 0, steps, repetitions, PEERS, str(folder))
        places = zip(on.names, on.addresses, strict=True)
        words = ["run", "-n", str(PEERS), "--keys", "--aggregator", "mean", "--encoding", encoding]
        words += ["--start-timeout", "250", "--run-dir", str(run), str(script), task.dump()]
        on_hosts = " ".join(word for place in places for word in place)
        run_gossip(words, folder / "log", TWO_HOSTS=on_hosts, GOSSIP_WARM="false")
        result = folder / "result.json"
        if not result.exists():
            raise SystemExit(f"the peers did not finish\n{last_words(folder / 'log')}")
        took: dict[str, Any] = json.loads(result.read_text("utf-8"))
        return {**took, **missing(run, PEERS)}


def main() -> int:
    options_of = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options_of.add_argument("--mbit", type=int, nargs="+", default=[0, 1000], help="0: no limit")
    options_of.add_argument("--numbers", type=int, nargs="+", default=[1_000_000, 25_000_000])
    options_of.add_argument("--encodings", nargs="+", default=["float32", "bf16", "int8"])
    options_of.add_argument("--repetitions", type=int, default=15, help="measured turns of each")
    options_of.add_argument("--json", type=Path, help="file for the numbers")
    options = options_of.parse_args()
    if why := why_no_hosts():
        options_of.error(why)
    rows: list[dict[str, Any]] = []
    print(
        "| Mbit/s | numbers | encoding | gloo, ms | gossip, ms | ratio (least to most) | lacking |"
    )
    print("|---|---|---|---|---|---|---|")
    with hosts(PEERS) as on:
        for mbit in sorted(options.mbit):  # 0, no limit, is first: a limit cannot be removed
            for number in range(PEERS if mbit else 0):
                on.narrow(number, mbit)
            for numbers in options.numbers:
                for encoding in options.encodings if mbit else options.encodings[:1]:
                    took = play(on, numbers, encoding, options.repetitions)
                    found = ratios(took[OURS], took[GLOO])
                    rows.append({"mbit": mbit, "numbers": numbers, "encoding": encoding, **took})
                    middle = [sorted(took[side])[len(took[side]) // 2] for side in (GLOO, OURS)]
                    lacking = took["rounds_without_somebody"]
                    print(
                        f"| {mbit or '-'} | {numbers:,} | {encoding} | {1e3 * middle[0]:.1f} | "
                        f"{1e3 * middle[1]:.1f} | {found.text()} | {lacking} |",
                        flush=True,
                    )
    return conclude(
        {"rows": rows}, options.json, any(row["rounds_without_somebody"] for row in rows)
    )


if __name__ == "__main__":
    sys.exit(main())
