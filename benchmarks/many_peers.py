"""Simulates rounds of up to 1,000 peers: bytes that a peer sends in a round, and the largest
messages.

    python benchmarks/many_peers.py --peers 64 256 1000
    python benchmarks/many_peers.py --peers 1000 --topology random-k
    python benchmarks/many_peers.py --peers 256 --speed

It prints a line of JSON for each size. Within 20 rounds one peer is killed, another joins, and the
killed peer returns. ``--speed`` plays the rounds without a fault and measures the simulator:
peer-rounds per second of processor time, and memory.

Exit codes: 0 success, 1 the peers did not end together.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict

from gossip_lab.simulation.campaign.many_peers import ManyPeers, many_peers, measure_speed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=int, nargs="+", default=[1000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topology", default="rolling")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.speed:
        if len(options.peers) > 1:
            parser.error("--speed measures memory, so each size needs its own process")
        world = ManyPeers(options.peers[0], options.seed, options.rounds, options.topology)
        print(json.dumps(asdict(measure_speed(world))))
        return 0
    well = True
    gc.disable()  # a collection would scan millions of objects, and find almost no cycles
    for n in options.peers:
        found = many_peers(
            ManyPeers(n, options.seed, options.rounds, options.topology),
            lambda text: print(text, file=sys.stderr, flush=True),
        )
        print(json.dumps({**asdict(found), "cpu_s": round(time.process_time(), 1)}), flush=True)
        well = well and found.together
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
